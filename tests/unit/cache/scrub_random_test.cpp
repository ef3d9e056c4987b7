// Sequences of several owners come, fork, are cut and go at random. Each token is a number of its
// own; whatever a block that a step has written in holds behind the sequence's tokens is one of the
// numbers that its owner wrote, or zero.

#include "support/environment.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/scrub_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <span>
#include <vector>

namespace kvarena {
namespace {

using test::ScrubCache;
using test::ScrubShape;

struct Case {
  DeviceKind kind = DeviceKind::host;
  BlockOrder order = BlockOrder::block_major;
  Scrub scrub = Scrub::on_owner_change;
  bool has_prefix_cache = false;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DeviceKind kind : test::device_kinds()) {
    for (const BlockOrder order : {BlockOrder::block_major, BlockOrder::layer_major}) {
      for (const Scrub scrub : {Scrub::on_owner_change, Scrub::always}) {
        all.push_back({kind, order, scrub});
        if (order == BlockOrder::block_major) all.push_back({kind, order, scrub, true});
      }
    }
  }
  return all;
}

/// The cache, and what each sequence's tokens are. With a prefix cache owners are tenants, and new
/// sequences begin with what one of their tenant had.
class Game {
 public:
  Game(const Case& its_case, std::uint64_t seed)
      : case_(its_case),
        random_(seed),
        t_({.name = "random", .kind = its_case.kind, .order = its_case.order}, its_case.scrub, 24,
           10, its_case.has_prefix_cache) {}

  void play(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      ASSERT_NO_FATAL_FAILURE(change());
      ASSERT_NO_FATAL_FAILURE(step());
    }
    EXPECT_GT(t_.cache.tables().stats().copies_on_write, 0U);
    if (!case_.has_prefix_cache) return;
    EXPECT_GT(t_.cache.tables().prefix_stats().hits, 0U);
    EXPECT_GT(num_parts_, 0);
  }

 private:
  struct Player {
    SequenceId id;
    std::vector<float> tokens;
    std::uint64_t salt = 0;
    std::vector<float> coming{};  // the rest of its prompt
  };
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::uint64_t any_owner() { return 1 + below(4); }
  /// Whose content a sequence's tokens are: its owner's, or its own alone.
  std::uint64_t writer_of(SequenceId id) const {
    return case_.scrub == Scrub::always ? id.value : t_.cache.tables().info(id)->owner;
  }

  static std::vector<std::int32_t> ids_of(std::span<const float> numbers) {
    return {numbers.begin(), numbers.end()};
  }

  void remember(const Player& player) {
    if (player.tokens.empty()) return;
    past_[player.salt] = player.tokens;
  }

  /// What is found is read as if the sequence had written it.
  void create() {
    const std::uint64_t owner = any_owner();
    if (!case_.has_prefix_cache || past_[owner].empty() || below(4) == 0) {
      players_.push_back(
          {t_.cache.create_sequence({.owner = owner, .salt = owner}).value(), {}, owner});
      return;
    }
    std::vector<float> prompt = past_[owner];
    prompt.resize(1 + below(prompt.size()));
    if (below(2) == 0) prompt.insert(prompt.end(), {next_number_++, next_number_++});
    const std::vector<std::int32_t> ids = ids_of(prompt);
    const auto id = t_.cache.create_sequence({.owner = owner, .tokens = ids, .salt = owner});
    if (!id) return;  // too few blocks
    const PrefixMatch found = t_.cache.tables().prefix_of(*id).value();
    num_parts_ += found.part_tokens > 0 ? 1 : 0;
    const auto end = prompt.begin() + found.tokens;
    players_.push_back({*id, {prompt.begin(), end}, owner, {end, prompt.end()}});
    written_[writer_of(*id)].insert(prompt.begin(), end);
  }

  void change() {
    if (players_.empty() || (players_.size() < 10 && below(3) == 0)) return create();
    const std::size_t chosen = below(players_.size());
    Player& player = players_[chosen];
    const auto length = static_cast<std::int64_t>(player.tokens.size());
    const auto kept = static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length) + 1));
    const auto kept_tokens = player.tokens.begin() + kept;
    switch (below(4)) {
      case 0:
        if (players_.size() == 10) return;
        players_.push_back({*t_.cache.fork(player.id, kept, {.owner = below(2) * any_owner()}),
                            {player.tokens.begin(), kept_tokens},
                            player.salt});
        return;
      case 1:
        remember(player);
        player.coming.clear();
        ASSERT_OK(t_.cache.truncate(player.id, kept));
        player.tokens.erase(kept_tokens, player.tokens.end());
        return;
      case 2: static_cast<void>(t_.cache.reserve_capacity(player.id, length + 6)); return;
      default:
        remember(player);
        ASSERT_OK(t_.cache.destroy(player.id));
        players_.erase(players_.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
  }

  /// The next tokens of a sequence: of its prompt, then new ones.
  std::vector<float> next_numbers(Player& player, std::size_t count) {
    std::vector<float> numbers;
    while (numbers.size() < count) {
      const bool is_new = player.coming.empty();
      numbers.push_back(is_new ? next_number_++ : player.coming.front());
      if (!is_new) player.coming.erase(player.coming.begin());
    }
    return numbers;
  }

  /// Some sequences grow; the step may be given up before or after its tokens were written.
  void step() {
    std::vector<AppendDemand> demands;
    std::vector<std::size_t> rows;
    std::vector<std::vector<float>> numbers_of;
    std::vector<std::vector<std::int32_t>> told(players_.size());
    for (std::size_t i = 0; i < players_.size(); ++i) {
      if (below(2) == 0) continue;
      numbers_of.push_back(next_numbers(players_[i], below(7)));
      told[rows.size()] = ids_of(numbers_of.back());
      demands.push_back({players_[i].id,
                         static_cast<std::int32_t>(numbers_of.back().size()),
                         {},
                         told[rows.size()]});
      rows.push_back(i);
    }
    ASSERT_OK(t_.cache.begin_step());
    const bool has_appended = static_cast<bool>(t_.cache.append(demands));  // false: too few blocks
    if (!has_appended || below(12) == 0) {
      for (const std::size_t row : rows) players_[row].coming.clear();
      ASSERT_OK(t_.cache.abort_step());
      return;
    }
    std::vector<float> numbers;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      Player& player = players_[rows[row]];
      for (const float number : numbers_of[row]) {
        numbers.push_back(number);
        player.tokens.push_back(number);
        written_[writer_of(player.id)].insert(number);
      }
    }
    ASSERT_OK(t_.write(numbers));
    const bool is_aborted = below(12) == 0;
    ASSERT_OK(is_aborted ? t_.cache.abort_step() : t_.cache.end_step());
    for (std::size_t row = 0; is_aborted && row < rows.size(); ++row) {
      Player& player = players_[rows[row]];
      player.coming.clear();
      player.tokens.resize(player.tokens.size() - numbers_of[row].size());
    }
    ASSERT_OK(t_.cache.check_invariants());
    look(demands, is_aborted);
  }

  /// Every token of every sequence; every slot of the blocks that the step wrote in.
  void look(const std::vector<AppendDemand>& demands, bool is_aborted) {
    const std::vector<std::byte> pool = t_.pool();
    for (const Player& player : players_) {
      const auto grown = std::find_if(demands.begin(), demands.end(), [&](const AppendDemand& d) {
        return d.sequence == player.id && d.num_tokens > 0;
      });
      const std::set<float>& own = written_[writer_of(player.id)];
      const std::int64_t size = t_.block_size();
      const auto length = static_cast<std::int64_t>(player.tokens.size());
      const std::int64_t end = (length + size - 1) / size * size;
      for (std::int64_t i = 0; i < end; ++i) {
        if (i >= length && (grown == demands.end() || is_aborted)) break;
        const float found =
            number_at(pool, *t_.cache.tables().lookup(player.id, i / size), i % size);
        if (i < length) {
          ASSERT_EQ(found, player.tokens[static_cast<std::size_t>(i)]) << "token " << i;
        } else {
          ASSERT_TRUE(found == 0 || own.contains(found))
              << found << " in slot " << i << " past " << length << " tokens";
        }
      }
    }
  }

  /// The number that a slot holds in every layer, head and dim.
  float number_at(const std::vector<std::byte>& pool, BlockId block, std::int64_t token) const {
    const std::vector<std::byte> bytes = t_.token_bytes(pool, block, token);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    const auto a_plane = static_cast<std::size_t>(ScrubCache::kHeads * 8);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], i / a_plane % 2 == 0 ? values[0] : -values[0]);
    }
    return values[0];
  }

  Case case_;
  std::mt19937_64 random_;
  ScrubCache t_;
  std::vector<Player> players_;
  std::map<std::uint64_t, std::set<float>> written_;  // by owner, also what is cut since
  std::map<std::uint64_t, std::vector<float>> past_;  // by salt: what a sequence had
  int num_parts_ = 0;                                 // sequences that began inside a block
  float next_number_ = 1;
};

class ScrubRandom : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Modes, ScrubRandom, ::testing::ValuesIn(cases()));

TEST_P(ScrubRandom, OwnersFindTheirOwnTokensAndZeros) {
  KVARENA_NEEDS_DEVICE(GetParam().kind);
  const auto seed = test::number_from_environment("KVARENA_SEED", 1);
  const auto times = static_cast<int>(test::number_from_environment("KVARENA_TEST_ROUNDS", 1));
  for (std::uint64_t game = 0; game < 4; ++game) {
    SCOPED_TRACE("KVARENA_SEED " + std::to_string(seed) + ", game " + std::to_string(game));
    Game(GetParam(), seed * 100 + game).play(200 * times);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvarena
