// A prefix pool and a naive index play the same games of an engine with tables of its own; nothing
// they show may differ. The naive index is a map from everything that a block's content depends on.
//
// KVARENA_SEED=<n> is the first seed; KVARENA_MODEL_OPS=<n> sets the number of operations of all
// games together; KVARENA_PREFIX_STEPS=<n> the length of the enumerated programs.

#include "model/naive_prefix_pool.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::model {
namespace {

constexpr std::uint64_t kDefaultOperations = test::kSanitized ? 60'000 : 1'000'000;
constexpr std::int64_t kOperationsOfGame = 2000;

constexpr PrefixPoolGame kGames[] = {
    {"ThreeBlocks", 3, 2, 2},
    {"Small", 10, 2, 2},
    {"OneToken", 16, 1, 2},
    {"Waiting", 12, 2, 2, DuplicateRule::wait},
    {"ManyTokens", 30, 3, 4},
    {"NotTold", 10, 2, 2, DuplicateRule::duplicate, false},
    {"NotToldAlone", 5, 1, 2, DuplicateRule::wait, false},
};

using Line = EngineLine;
using Content = NaivePrefixPool::Content;

/// Plays one game.
class Driver {
 public:
  Driver(const PrefixPoolGame& game, std::uint64_t seed)
      : game_(game),
        manager_(BlockManager::create({.num_blocks = game.num_blocks}).value()),
        pool_(PrefixPool::create(manager_, {.block_size_tokens = game.block_size,
                                            .prefix = {.hash_key = {seed + 1, 2},
                                                       .max_extra_keys = 2,
                                                       .history_entries = 100'000,
                                                       .duplicates = game.duplicates}})
                  .value()),
        naive_(manager_, game_),
        memory_(static_cast<std::size_t>(game.num_blocks)),
        random_(seed) {}

  void play(std::int64_t operations, std::set<std::string>& outcomes) {
    for (std::int64_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      step(outcomes);
      if (game_.is_told) compare();
      if (i % 16 == 0) {
        EXPECT_OK(pool_.check_invariants());
        EXPECT_OK(manager_.check_invariants());
      }
    }
    for (const Line& line : lines_) {
      EXPECT_OK(manager_.release(line.holder, line.ids, line.generations));
    }
  }

  /// Plays one operation of the enumeration, 0 .. kNumSteps - 1. The first kNumBeginnings need no
  /// line; the others do nothing without one.
  void step(int number, std::set<std::string>& outcomes) {
    if (number < kNumBeginnings) {
      Line line;
      line.tokens = number == 0 ? std::vector<std::int32_t>{1, 2, 3, 4, 5}
                                : std::vector<std::int32_t>{1, 2, 7};
      return start(std::move(line), outcomes);
    }
    if (lines_.empty()) return;
    Line& newest = lines_.back();
    Line& oldest = lines_.front();
    switch (number) {
      case 2: return add(newest, full_blocks(newest), outcomes);
      case 3: return publish(oldest, static_cast<std::size_t>(oldest.position.blocks));
      case 4: return end(0);
      case 5: return grow(newest, std::array{6});
      default: break;
    }
    const auto last = std::span(oldest.ids).last(std::min<std::size_t>(1, oldest.ids.size()));
    EXPECT_OK(pool_.forget(last));
    naive_.forget(last);
  }
  static constexpr int kNumSteps = 7;
  static constexpr int kNumBeginnings = 2;
  /// Compares both sides, and ends and forgets everything for the next program.
  void end_program() {
    compare();
    EXPECT_OK(pool_.check_invariants());
    EXPECT_OK(manager_.check_invariants());
    while (!lines_.empty()) end(0);
    pool_.forget_all();
    naive_.forget_all();
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }

  void step(std::set<std::string>& outcomes) {
    const std::size_t choice = below(20);
    if (choice < 5 || lines_.empty()) return start(outcomes);
    Line& line = lines_[below(lines_.size())];
    if (choice < 9) return grow(line);
    if (choice < 13) return add(line, outcomes);
    if (choice < 15) return publish(line);
    if (choice < 17) return end(&line - lines_.data());
    if (choice < 18) return fork(line);
    if (choice < 19) return forget(line, outcomes);
    refuse(line, outcomes);
  }

  /// Tokens, a salt and extra keys that others may have too.
  Line draw() {
    Line line;
    line.salt = below(4) == 0 ? 1 : 0;
    const std::size_t length = below(static_cast<std::size_t>(game_.block_size) * 5 + 2);
    for (std::size_t i = 0; i < length; ++i) {
      line.tokens.push_back(
          static_cast<std::int32_t>(below(static_cast<std::size_t>(game_.alphabet))));
    }
    const std::size_t keys = below(6) == 0 ? 1 + below(2) : 0;
    for (std::size_t i = 0; i < keys; ++i) {
      line.keys.push_back(
          {.key = 5 + below(2), .first_token = static_cast<std::int64_t>(below(5))});
    }
    std::ranges::sort(line.keys, {}, &ExtraKey::first_token);
    return line;
  }
  std::size_t full_blocks(const Line& line) const {
    return line.tokens.size() / static_cast<std::size_t>(game_.block_size);
  }
  void notice(std::span<const BlockId> ids) {
    if (!game_.is_told && below(3) != 0) return;
    naive_.notice(ids);  // before the real one gives blocks another content
    pool_.notice(ids);
  }
  /// Takes the blocks that a line lacks. Returns false when there are too few.
  bool allocate(Line& line) {
    const auto size = static_cast<std::size_t>(game_.block_size);
    const std::size_t have = line.ids.size();
    const std::size_t want = (line.tokens.size() + size - 1) / size;
    std::vector<BlockId> ids(want - have);
    std::vector<Generation> generations(want - have);
    if (!manager_.allocate(line.holder, ids, generations)) return false;
    notice(ids);
    for (const BlockId id : ids) memory_[static_cast<std::size_t>(id.value)].clear();
    line.ids.insert(line.ids.end(), ids.begin(), ids.end());
    line.generations.insert(line.generations.end(), generations.begin(), generations.end());
    return true;
  }
  void release(Line& line) {
    std::ranges::reverse(line.ids);
    std::ranges::reverse(line.generations);
    EXPECT_OK(manager_.release(line.holder, line.ids, line.generations));
    notice(line.ids);
    EXPECT_OK(manager_.unregister_holder(line.holder));
  }

  void start(std::set<std::string>& outcomes) { start(draw(), outcomes); }
  void start(Line line, std::set<std::string>& outcomes) {
    line.holder = manager_.register_holder({}).value();
    std::vector<BlockId> expected;
    const PrefixMatch naive = naive_.match(line, expected);
    line.ids.resize(full_blocks(line));
    line.generations.resize(line.ids.size());
    const Result<PrefixAdoption> adopted =
        pool_.adopt(line.holder, {line.tokens, line.salt, line.keys}, line.ids, line.generations);
    if (!adopted) {
      EXPECT_EQ(game_.duplicates, DuplicateRule::wait);
      EXPECT_TRUE(naive.stop == PrefixStop::not_yet_published || !game_.is_told);
      EXPECT_OK(manager_.unregister_holder(line.holder));
      outcomes.insert("adopt: failed_precondition");
      return;
    }
    const PrefixMatch& found = adopted->found;
    line.ids.resize(static_cast<std::size_t>(found.blocks));
    line.generations.resize(line.ids.size());
    line.position = adopted->end;
    if (game_.is_told) {
      EXPECT_EQ(line.ids, expected);
      EXPECT_EQ(found.stop, naive.stop) << name_of(found.stop) << ", not " << name_of(naive.stop);
      EXPECT_EQ(found.removal, naive.removal);
      EXPECT_EQ(found.pending_block, naive.pending_block);
      naive_.count(line, naive);
      line.last = naive_.last_of(line, line.ids.size());
    }
    outcomes.insert("stop: " + std::string(name_of(found.stop)));
    for (std::size_t i = 0; i < line.ids.size(); ++i) {
      EXPECT_EQ(memory_[static_cast<std::size_t>(line.ids[i].value)],
                naive_.content_of(line, i + 1))
          << "another's content was found";
    }
    if (allocate(line)) return lines_.push_back(std::move(line));
    outcomes.insert("allocate: exhausted");
    release(line);
  }
  void grow(Line& line) {
    std::vector<std::int32_t> tokens(1 + below(static_cast<std::size_t>(game_.block_size) * 2));
    for (std::int32_t& token : tokens) {
      token = static_cast<std::int32_t>(below(static_cast<std::size_t>(game_.alphabet)));
    }
    grow(line, tokens);
  }
  void grow(Line& line, std::span<const std::int32_t> tokens) {
    const std::size_t before = line.tokens.size();
    line.tokens.insert(line.tokens.end(), tokens.begin(), tokens.end());
    if (!allocate(line)) line.tokens.resize(before);
  }
  void add(Line& line, std::set<std::string>& outcomes) {
    const auto first = static_cast<std::size_t>(line.position.blocks);
    add(line, first + below(full_blocks(line) - first + 1), outcomes);
  }
  void add(Line& line, std::size_t end, std::set<std::string>& outcomes) {
    auto first = static_cast<std::size_t>(line.position.blocks);
    const auto size = static_cast<std::size_t>(game_.block_size);
    const auto blocks_of = [&](std::size_t from, std::size_t to) {
      return pool_.register_blocks(line.position,
                                   std::span(line.tokens).subspan(from * size, (to - from) * size),
                                   std::span(line.ids).subspan(from, to - from),
                                   std::span(line.generations).subspan(from, to - from), line.keys);
    };
    for (std::size_t i = first; i < end; ++i) {
      memory_[static_cast<std::size_t>(line.ids[i].value)] = naive_.content_of(line, i + 1);
    }
    const bool is_stale = naive_.is_stale(line.last);
    Result<std::int64_t> added = blocks_of(first, end);
    if (added.status().code == StatusCode::stale_handle) {
      EXPECT_TRUE(is_stale || !game_.is_told);
      outcomes.insert("register_blocks: stale_handle");
      line.position = pool_.begin(line.salt);
      line.last = 0;
      first = 0;
      added = blocks_of(first, end);
    } else {
      EXPECT_FALSE(is_stale && game_.is_told);
    }
    ASSERT_OK(added);
    EXPECT_EQ(line.position.blocks, static_cast<std::int32_t>(end));
    if (game_.is_told) {
      EXPECT_EQ(*added, naive_.add(line, first, end));
    }
  }
  void publish(Line& line) {
    publish(line, below(static_cast<std::size_t>(line.position.blocks) + 1));
  }
  void publish(Line& line, std::size_t count) {
    const auto ids = std::span(line.ids).first(count);
    const Result<std::int64_t> published =
        pool_.publish(ids, std::span(line.generations).first(count));
    ASSERT_OK(published);
    if (game_.is_told) {
      EXPECT_EQ(*published, naive_.publish(ids));
    }
  }
  void end(std::ptrdiff_t place) {
    release(lines_[static_cast<std::size_t>(place)]);
    lines_.erase(lines_.begin() + place);
  }
  /// A fork shares the full blocks of its parent, and goes on alone.
  void fork(const Line& parent) {
    Line child = parent;
    const std::size_t blocks = full_blocks(parent);
    child.tokens.resize(blocks * static_cast<std::size_t>(game_.block_size));
    child.ids.resize(blocks);
    child.generations.resize(blocks);
    child.holder = manager_.register_holder({}).value();
    EXPECT_OK(manager_.retain(child.holder, child.ids, child.generations));
    lines_.push_back(std::move(child));
  }
  void forget(const Line& line, std::set<std::string>& outcomes) {
    const std::size_t choice = below(6);
    outcomes.insert(choice == 0 ? "forget_salt" : choice == 1 ? "forget_all" : "forget");
    if (choice == 0) {
      pool_.forget_salt(line.salt);
      return naive_.forget_salt(line.salt);
    }
    if (choice == 1) {
      pool_.forget_all();
      return naive_.forget_all();
    }
    const auto last = std::span(line.ids).last(below(line.ids.size() + 1));
    EXPECT_OK(pool_.forget(last));
    naive_.forget(last);
  }
  /// Wrong calls change nothing, which compare() sees.
  void refuse(Line& line, std::set<std::string>& outcomes) {
    if (line.ids.empty()) return;
    const auto first = std::span(line.ids).first(1);
    const std::vector<Generation> old{Generation(line.generations[0].value + 1)};
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(game_.block_size), 7);
    PrefixPosition at = pool_.begin(line.salt);
    EXPECT_EQ(pool_.register_blocks(at, tokens, first, old).status().code,
              StatusCode::stale_handle);
    EXPECT_EQ(pool_.publish(first, old).status().code, StatusCode::stale_handle);
    if (!naive_.is_stale(line.last) && line.position.blocks != 0 && game_.is_told) {
      at = line.position;
      at.chain[0] ^= 1U;
      EXPECT_EQ(pool_.register_blocks(at, {}, {}, {}).status().code, StatusCode::not_found);
      outcomes.insert("register_blocks: not_found");
    }
  }
  void compare() {
    const PrefixStats real = pool_.stats();
    const PrefixStats naive = naive_.now();
    EXPECT_EQ(real.registered, naive.registered);
    EXPECT_EQ(real.published, naive.published);
    EXPECT_EQ(real.registrations, naive.registrations);
    EXPECT_EQ(real.removals, naive.removals);
    EXPECT_EQ(real.removals_by, naive.removals_by);
    EXPECT_EQ(real.stops, naive.stops);
    EXPECT_EQ(real.hit_tokens, naive.hit_tokens);
    EXPECT_EQ(real.duplicates, naive.duplicates);
  }

  const PrefixPoolGame& game_;
  BlockManager manager_;
  PrefixPool pool_;
  NaivePrefixPool naive_;
  std::vector<Content> memory_;
  std::vector<Line> lines_;
  std::mt19937_64 random_;
};

class PrefixPoolGames : public ::testing::TestWithParam<PrefixPoolGame> {};

TEST_P(PrefixPoolGames, NothingDiffers) {
  const std::uint64_t first = test::number_from_environment("KVARENA_SEED", 1);
  const std::uint64_t all = test::number_from_environment("KVARENA_MODEL_OPS", kDefaultOperations);
  const auto of_game = static_cast<std::int64_t>(all / std::size(kGames));
  std::set<std::string> outcomes;
  for (std::int64_t played = 0; played < of_game; played += kOperationsOfGame) {
    const auto seed = first + static_cast<std::uint64_t>(played / kOperationsOfGame);
    Driver(GetParam(), seed).play(kOperationsOfGame, outcomes);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Games, PrefixPoolGames, ::testing::ValuesIn(kGames),
                         [](const auto& game) { return std::string(game.param.name); });

// The games are worth nothing if some outcome never happens in them.
TEST(PrefixPoolOutcomes, EachHappens) {
  std::set<std::string> outcomes;
  for (const PrefixPoolGame& game : kGames) Driver(game, 3).play(4000, outcomes);
  for (const char* outcome :
       {"stop: capped", "stop: less_than_a_block", "stop: never_seen", "stop: evicted",
        "stop: other_salt", "stop: other_extra_key", "stop: not_yet_published",
        "adopt: failed_precondition", "allocate: exhausted", "register_blocks: stale_handle",
        "register_blocks: not_found", "forget", "forget_all", "forget_salt"}) {
    EXPECT_TRUE(outcomes.contains(outcome)) << outcome << " never happened";
  }
}

/// Plays every program of the given length, in the order of its numbers.
void enumerate(DuplicateRule duplicates, int length) {
  const PrefixPoolGame game{"Enumeration", 3, 2, 2, duplicates};
  Driver driver(game, 1);
  std::set<std::string> outcomes;
  std::vector<int> program(static_cast<std::size_t>(length));
  for (bool more = true; more;) {
    for (const int number : program) driver.step(number, outcomes);
    driver.end_program();
    std::string text;
    for (const int number : program) text += std::to_string(number);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "program " << text;
    more = false;
    for (std::size_t place = program.size(); place-- > 0 && !more;) {
      const int end = place == 0 ? Driver::kNumBeginnings : Driver::kNumSteps;
      more = ++program[place] < end;
      if (!more) program[place] = 0;
    }
  }
}

TEST(PrefixPoolEnumeration, EveryProgramOnThreeBlocks) {
  const auto length = static_cast<int>(
      test::number_from_environment("KVARENA_PREFIX_STEPS", test::kSanitized ? 4 : 7));
  for (int shorter = 1; shorter <= length && !HasFatalFailure(); ++shorter) {
    enumerate(DuplicateRule::duplicate, shorter);
    if (!HasFatalFailure() && shorter < 7) enumerate(DuplicateRule::wait, shorter);
  }
}

}  // namespace
}  // namespace kvarena::model
