// Scrubs in a pool that layers of every kind share. Sequences of several owners come, fork, are cut
// and go at random, and pages turn from group to group. Each token is a number of its own, and so
// is each encoder. Every byte of a block that a step has written in is of one of the owner's
// numbers, of the sequence's own tokens, or zero; no token and no state of a sequence is lost.

#include "support/device_buffer.hpp"
#include "support/devices.hpp"
#include "support/environment.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/base/tile_order.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvarena {
namespace {

struct Case {
  DeviceKind kind = DeviceKind::host;
  Scrub scrub = Scrub::on_owner_change;
  StateMode mode = StateMode::in_place;
  bool keeps = true;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DeviceKind kind : test::device_kinds()) {
    for (const Scrub scrub : {Scrub::on_owner_change, Scrub::always}) {
      for (const StateMode mode : {StateMode::in_place, StateMode::read_write}) {
        for (const bool keeps : {true, false}) all.push_back({kind, scrub, mode, keeps});
      }
    }
  }
  return all;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& its = info.param;
  return std::string(its.kind == DeviceKind::host ? "Host" : "Cuda") +
         (its.scrub == Scrub::always ? "Always" : "OnOwnerChange") +
         (its.mode == StateMode::in_place ? "InPlace" : "ReadWrite") +
         (its.keeps ? "" : "OneState");
}

/// The cache, and what each sequence has.
class Game {
 public:
  static constexpr std::int64_t kPages = 70;
  static constexpr std::int32_t kMostTokens = 60;
  static constexpr std::int32_t kStepTokens = 80;
  static constexpr std::size_t kPlayers = 7;  ///< of the game; one sequence more may exist

  Game(const Case& its, std::uint64_t seed)
      : case_(its), random_(seed), device_(test::make_device(its.kind)) {
    const GroupLayer full[] = {{0}, {3}};
    const GroupLayer window[] = {{1}, {2}};
    const GroupLayer chunk[] = {{4}};
    const GroupLayer cross[] = {{5}};
    const GroupLayer state[] = {{6}, {7}};
    const StatePlane planes[] = {{.dtype = DType::f32, .num_dims = 1, .shape = {3}},
                                 {.dtype = DType::f32, .num_dims = 2, .shape = {5, 7}}};
    const auto group = [](PagedKind kind, std::span<const GroupLayer> layers, std::int32_t heads,
                          std::int32_t dim, std::int64_t limit) {
      return LayerGroup{.kind = kind,
                        .layers = layers,
                        .num_kv_heads = heads,
                        .head_dim_k = dim,
                        .dtype = DType::f32,
                        .block_size_tokens = 4,
                        .limit_tokens = limit};
    };
    LayerGroup groups[] = {group(PagedKind::full, full, 2, 8, 0),
                           group(PagedKind::window, window, 1, 40, 9),
                           group(PagedKind::chunk, chunk, 4, 8, 8),
                           group(PagedKind::cross, cross, 1, 8, kEncoderTokens),
                           {.kind = PagedKind::state,
                            .layers = state,
                            .rollback_tokens = its.keeps ? 2 : 0,
                            .planes = planes,
                            .mode = its.mode,
                            .keeps_for_undo = its.keeps}};
    groups[1].rollback_tokens = 3;
    cache_.emplace(KvCache::create(*device_, {.size = {.num_blocks = kPages},
                                              .scrub = its.scrub,
                                              .num_q_heads = 4,
                                              .max_sequences = kPlayers + 1,
                                              .max_sequence_tokens = kMostTokens,
                                              .max_step_tokens = kStepTokens,
                                              .num_threads = 1,
                                              .groups = groups,
                                              .checkpoint_every_tokens = 8})
                       .value());
    key_ = test::DeviceBuffer::create(*device_, kInputFloats * sizeof(float)).value();
    value_ = test::DeviceBuffer::create(*device_, kInputFloats * sizeof(float)).value();
    EXPECT_OK(device_->fill(c().arena().base(), 0xFF, arena_bytes(), c().stream()));
    EXPECT_OK(c().synchronize());
  }

  void play(int rounds) {
    for (int round = 0; round < rounds && !::testing::Test::HasFailure(); ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      if (round % 50 == 0) end_inside_a_step();
      ASSERT_NO_FATAL_FAILURE(change());
      ASSERT_NO_FATAL_FAILURE(step());
    }
    EXPECT_GT(c().tables().stats().copies_on_write, 0U);
    EXPECT_GT(num_grown_, rounds / 2);
    EXPECT_GT(num_aborted_, 0);
    EXPECT_GT(num_encoders_, 0);
    EXPECT_GT(num_states_, rounds / 4);
    EXPECT_GT(num_turned(), kPages) << "pages are used again";
  }

 private:
  static constexpr std::int32_t kEncoderTokens = 7;
  static constexpr std::size_t kInputFloats = std::size_t{kStepTokens} * 64;
  struct Player {
    SequenceId id;
    std::vector<float> tokens;
    std::int32_t cross_tokens = 0;
    float encoder = 0;  // its number; 0: none
    bool has_written = false;
  };

  KvCache& c() { return *cache_; }
  std::size_t arena_bytes() { return static_cast<std::size_t>(c().arena().bytes()); }
  std::int64_t num_turned() { return static_cast<std::int64_t>(c().manager().page_stats().turned); }
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  /// Whose content a sequence's tokens are: its owner's, or its own alone.
  std::uint64_t writer_of(SequenceId id) {
    return case_.scrub == Scrub::always ? id.value : c().tables().info(id)->owner;
  }
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  void create() {
    const auto encoder_tokens = static_cast<std::int32_t>(below(2) * (1 + below(kEncoderTokens)));
    const std::uint64_t owner = 1 + below(3);
    const auto id = c().create_sequence({.owner = owner, .cross_tokens = encoder_tokens});
    if (!id) return;
    Player& player = players_.emplace_back();
    player.id = *id;
    player.cross_tokens = encoder_tokens;
    if (encoder_tokens > 0) player.encoder = next_number_++;
  }
  /// A sequence that takes its encoder's blocks, and ends before the step is given up.
  void end_inside_a_step() {
    const SequenceId id = c().create_sequence({.owner = 1, .cross_tokens = 5}).value();
    const AppendDemand demand{id, 1};
    ASSERT_OK(c().begin_step());
    const Status appended = c().append(std::span(&demand, 1)).status();
    EXPECT_TRUE(appended || appended.resource == Resource::page) << describe(appended);
    ASSERT_OK(c().destroy(id));
    ASSERT_OK(c().abort_step());
  }
  void change() {
    if (players_.empty() || (players_.size() < kPlayers && below(3) == 0)) return create();
    const std::size_t chosen = below(players_.size());
    Player& player = players_[chosen];
    const std::int64_t asked =
        std::ssize(player.tokens) - static_cast<std::int64_t>(below(2) * below(5));
    const std::int64_t kept =
        c().tables().restorable_length(player.id, std::max<std::int64_t>(0, asked)).value();
    switch (below(6)) {
      case 0:
      case 1: {
        if (players_.size() == kPlayers) return;
        const auto child = c().fork(player.id, kept, {.owner = below(2) * (1 + below(3))});
        if (!child) return;
        Player copy = player;
        copy.id = *child;
        copy.tokens.resize(index(kept));
        players_.push_back(copy);
        return;
      }
      case 2:
        ASSERT_OK(c().truncate(player.id, kept));
        player.tokens.resize(index(kept));
        return;
      case 3:
        static_cast<void>(c().reserve_capacity(player.id, std::ssize(player.tokens) + 6));
        return;
      default:
        ASSERT_OK(c().destroy(player.id));
        players_.erase(players_.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
  }

  void step() {
    std::vector<AppendDemand> demands;
    std::vector<std::size_t> rows;
    std::vector<float> numbers;
    for (std::size_t i = 0; i < players_.size(); ++i) {
      const auto room = static_cast<std::uint64_t>(kMostTokens - std::ssize(players_[i].tokens));
      const std::uint64_t count = std::min(room, below(below(4) == 0 ? 11 : 3));
      if (below(3) == 0) continue;
      demands.push_back({players_[i].id, static_cast<std::int32_t>(count)});
      rows.push_back(i);
      for (std::uint64_t token = 0; token < count; ++token) numbers.push_back(next_number_++);
    }
    ASSERT_OK(c().begin_step());
    const Result<StepBatch> batch = c().append(demands);
    if (!batch || below(12) == 0) {
      ASSERT_OK(c().abort_step());
      if (batch) cut_lost();
      if (!batch && !players_.empty()) {
        ASSERT_OK(c().destroy(players_.back().id));
        players_.pop_back();
      }
      return;
    }
    const std::vector<Player> before = players_;
    std::size_t next = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      Player& player = players_[rows[row]];
      for (std::int32_t i = 0; i < demands[row].num_tokens; ++i) {
        player.tokens.push_back(numbers[next]);
        written_[writer_of(player.id)].insert(numbers[next++]);
      }
    }
    ASSERT_NO_FATAL_FAILURE(look_at_states(*batch, rows, before));
    ASSERT_NO_FATAL_FAILURE(write(*batch, rows, numbers));
    const bool is_aborted = below(12) == 0;
    if (is_aborted) {
      ++num_aborted_;
      ASSERT_OK(c().abort_step());
      for (std::size_t i = 0; i < players_.size(); ++i) {
        players_[i].tokens = before[i].tokens;
        players_[i].has_written = before[i].has_written;
      }
      cut_lost();
    } else {
      ASSERT_OK(c().end_step());
    }
    ASSERT_OK(c().check_invariants());
    look(before, is_aborted);
  }
  /// A sequence whose state is lost goes on where it can.
  void cut_lost() {
    for (Player& player : players_) {
      const std::int64_t length =
          c().tables().restorable_length(player.id, std::ssize(player.tokens)).value();
      if (length == std::ssize(player.tokens)) continue;
      ASSERT_OK(c().truncate(player.id, length));
      player.tokens.resize(index(length));
    }
  }

  /// K of a number, V its negative, of `width` elements a token.
  Status give(const std::vector<float>& numbers, std::size_t width) {
    keys_.clear();
    values_.clear();
    for (const float number : numbers) {
      keys_.insert(keys_.end(), width, number);
      values_.insert(values_.end(), width, -number);
    }
    const std::size_t bytes = keys_.size() * sizeof(float);
    if (Status s = device_->copy(key_.data(), keys_.data(), bytes, c().stream()); !s) return s;
    return device_->copy(value_.data(), values_.data(), bytes, c().stream());
  }
  void write(const StepBatch& batch, const std::vector<std::size_t>& rows,
             const std::vector<float>& numbers) {
    for (const std::int32_t layer : {0, 1, 2, 3, 4}) {
      const KvLayerView kv = *c().layer_view(layer);
      ASSERT_OK(give(numbers, index(kv.key.num_heads * kv.key.head_dim)));
      ASSERT_OK(c().write_kv({layer, key_.data(), value_.data(), DType::f32}));
      ASSERT_OK(c().synchronize());
    }
    for (const std::size_t row : rows) {
      Player& player = players_[row];
      if (player.encoder == 0 || player.has_written) continue;
      ++num_encoders_;
      written_[writer_of(player.id)].insert(player.encoder);
      ASSERT_OK(give(std::vector<float>(index(player.cross_tokens), player.encoder), 8));
      ASSERT_OK(c().write_cross({.layer = 5,
                                 .sequence = player.id,
                                 .key = key_.data(),
                                 .value = value_.data(),
                                 .dtype = DType::f32}));
      ASSERT_OK(c().synchronize());
      player.has_written = true;
    }
    write_states(batch, rows);
  }
  /// Calls visit(first byte in the arena, floats) for the planes of a layer's state in a slot.
  template <class Visit>
  void for_each_plane(std::int32_t slot, std::int32_t layer, Visit visit) {
    const StateView view = c().state_view(layer).value();
    for (std::size_t i = 0; i < view.num_planes; ++i) {
      const StatePlaneView& plane = view.planes[i];
      visit((view.base - c().arena().base()) + slot * view.slot_stride + plane.offset,
            i == 0 ? 3 : 35);
    }
  }
  void set_state(std::int32_t slot, std::int32_t layer, float number) {
    for_each_plane(slot, layer, [&](std::int64_t at, int floats) {
      const std::vector<float> numbers(index(floats), number);
      ASSERT_OK(device_->copy(c().arena().base() + at, numbers.data(),
                              numbers.size() * sizeof(float), c().stream()));
      ASSERT_OK(c().synchronize());
    });
  }
  /// The state of a sequence is the number of its last token.
  void write_states(const StepBatch& batch, const std::vector<std::size_t>& rows) {
    const StateSlots& its = batch.states[0];
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const Player& player = players_[rows[row]];
      for (const std::int32_t layer : {6, 7}) {
        const auto part = index(c().state_view(layer)->part);
        const auto parts = index(its.num_parts);
        const std::int32_t slot = its.write[row * parts + part];
        if (slot < 0) continue;
        set_state(slot, layer, player.tokens.back());
        const std::size_t first = player.tokens.size() - new_of_row_[row];
        for (std::int32_t e = its.extra_offsets[row]; e < its.extra_offsets[row + 1]; ++e) {
          set_state(its.extra_slots[index(e) * parts + part], layer,
                    player.tokens[first + index(its.extra_tokens[index(e)])]);
        }
      }
    }
  }

  /// In front of the step's writes: the states that it reads are those of the tokens so far.
  void look_at_states(const StepBatch& batch, const std::vector<std::size_t>& rows,
                      const std::vector<Player>& before) {
    ASSERT_OK(c().synchronize());
    const std::vector<std::byte> pool = bytes();
    const StateSlots& its = batch.states[0];
    new_of_row_.clear();
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const Player& player = before[rows[row]];
      new_of_row_.push_back(players_[rows[row]].tokens.size() - player.tokens.size());
      for (const std::int32_t layer : {6, 7}) {
        const auto part = index(c().state_view(layer)->part);
        const std::int32_t slot = its.read[row * index(its.num_parts) + part];
        if (slot < 0 || (player.tokens.empty() && new_of_row_.back() == 0)) continue;
        const float expected = player.tokens.empty() ? 0.0F : player.tokens.back();
        ++num_states_;
        for_each_plane(slot, layer, [&](std::int64_t at, int floats) {
          for (int i = 0; i < floats; ++i) {
            ASSERT_EQ(float_at(pool, at + i * 4), expected) << "state of layer " << layer;
          }
        });
      }
    }
  }

  std::vector<std::byte> bytes() {
    std::vector<std::byte> pool(arena_bytes());
    EXPECT_OK(device_->copy(pool.data(), c().arena().base(), pool.size(), c().stream()));
    EXPECT_OK(c().synchronize());
    return pool;
  }
  static float float_at(const std::vector<std::byte>& pool, std::int64_t at) {
    float found;
    std::memcpy(&found, pool.data() + at, sizeof(found));
    return found;
  }
  /// Every word of these bytes is one of the numbers, or zero.
  static void expect_own(const std::vector<std::byte>& pool, std::int64_t at, std::int64_t bytes,
                         const std::set<float>& own) {
    for (std::int64_t i = 0; i < bytes; i += 4) {
      const float found = float_at(pool, at + i);
      ASSERT_TRUE(found == 0 || own.contains(found) || own.contains(-found))
          << found << " in byte " << i << " of " << bytes;
    }
  }
  /// Every token that is kept; every byte of the blocks that the step wrote in.
  void look(const std::vector<Player>& before, bool is_aborted) {
    const std::vector<std::byte> pool = bytes();
    for (std::size_t p = 0; p < players_.size(); ++p) {
      const Player& player = players_[p];
      std::set<float> own = written_[writer_of(player.id)];
      own.insert(player.tokens.begin(), player.tokens.end());
      const std::int64_t grown = std::ssize(player.tokens) - std::ssize(before[p].tokens);
      if (!is_aborted && grown > 0) ++num_grown_;
      for (const std::int32_t layer : {0, 1, 2, 3, 4, 5}) {
        const std::int32_t part = c().arena().groups()->part_of(layer);
        const KvLayerView kv = *c().layer_view(layer);
        const bool is_cross = layer == 5;
        if (is_cross && !player.has_written) continue;
        const std::int64_t length = is_cross ? player.cross_tokens : std::ssize(player.tokens);
        for (std::int64_t i = 0; i < length; ++i) {
          const std::int64_t slot = c().tables().slot_of(player.id, i, part).value();
          if (slot < 0) continue;
          const float number = is_cross ? player.encoder : player.tokens[index(i)];
          for (const PlaneView* plane : {&kv.key, &kv.value}) {
            const float expected = plane == &kv.key ? number : -number;
            for (std::int32_t e = 0; e < plane->num_heads * plane->head_dim; ++e) {
              const std::int64_t at =
                  (plane->base - c().arena().base()) +
                  element_offset(*plane, 4, slot / 4, e / plane->head_dim,
                                 static_cast<std::int32_t>(slot % 4), e % plane->head_dim);
              ASSERT_EQ(float_at(pool, at), expected)
                  << "layer " << layer << ", token " << i << " of " << length;
            }
          }
          const bool is_written =
              !is_aborted && i % 4 == 0 &&
              (is_cross ? !before[p].has_written
                        : grown > 0 && i >= std::ssize(before[p].tokens) / 4 * 4);
          if (!is_written) continue;
          const PagedBlocks& blocks = c().arena().groups()->parts()[index(part)].blocks;
          SCOPED_TRACE("layer " + std::to_string(layer) + ", token " + std::to_string(i));
          ASSERT_NO_FATAL_FAILURE(
              expect_own(pool, slot / 4 * blocks.id_stride_bytes, blocks.block_bytes, own));
        }
      }
    }
  }

  Case case_;
  std::mt19937_64 random_;
  std::unique_ptr<Device> device_;
  std::optional<KvCache> cache_;
  test::DeviceBuffer key_;
  test::DeviceBuffer value_;
  std::vector<float> keys_;  // until the copies have run
  std::vector<float> values_;
  std::vector<Player> players_;
  std::vector<std::size_t> new_of_row_;
  std::map<std::uint64_t, std::set<float>> written_;  // by owner, also what is cut since
  float next_number_ = 1;
  int num_grown_ = 0;
  int num_aborted_ = 0;
  int num_encoders_ = 0;
  int num_states_ = 0;
};

class ScrubGroups : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Modes, ScrubGroups, ::testing::ValuesIn(cases()), case_name);

TEST_P(ScrubGroups, OwnersFindTheirOwnTokensAndZeros) {
  KVARENA_NEEDS_DEVICE(GetParam().kind);
  const auto seed = test::number_from_environment("KVARENA_SEED", 1);
  const auto times = static_cast<int>(test::number_from_environment("KVARENA_TEST_ROUNDS", 1));
  for (std::uint64_t game = 0; game < 2; ++game) {
    SCOPED_TRACE("KVARENA_SEED " + std::to_string(seed) + ", game " + std::to_string(game));
    Game(GetParam(), seed * 100 + game).play(200 * times);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvarena
