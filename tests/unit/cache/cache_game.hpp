#pragma once

/// @file
/// A random life of a small engine on a ShadowEngine: ragged prefill chunks beside decode, forks,
/// speculative rollback, destruction right after a step, preemption when blocks run out.

#include "support/status_matchers.hpp"
#include "unit/cache/shadow_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace kvarena::test {

/// Sizes of a game.
struct GameOptions {
  std::int32_t num_steps = 60;
  std::int64_t max_sequences = 6;
  std::int64_t max_length = 60;  ///< tokens of a sequence
  std::int32_t max_chunk = 9;    ///< tokens of a prefill chunk
  std::uint64_t seed = 1;
};

/// Plays steps until done or something fails.
class CacheGame {
 public:
  CacheGame(ShadowEngine& engine, const GameOptions& options)
      : engine_(engine), options_(options), random_(options.seed) {}

  std::int64_t num_preemptions() const noexcept { return num_preemptions_; }
  std::int64_t num_forks() const noexcept { return num_forks_; }

  /// The whole game; everything is destroyed at its end.
  void play() {
    for (std::int32_t i = 0; i < options_.num_steps; ++i) {
      play_step();
      ASSERT_OK(engine_.cache().check_invariants()) << "step " << i;
      ASSERT_EQ(engine_.mismatches().wrong, 0) << engine_.mismatches().first;
      if (::testing::Test::HasFatalFailure()) return;
      if (i % 16 == 15) compare_all_bytes();
    }
    ASSERT_OK(engine_.finish());
    for (const SequenceId id : ids()) ASSERT_OK(engine_.destroy(id));
    ASSERT_OK(engine_.finish());
    EXPECT_EQ(engine_.mismatches().wrong, 0) << engine_.mismatches().first;
    EXPECT_EQ(engine_.cache().manager().stats().free, engine_.cache().arena().num_blocks());
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::vector<SequenceId> ids() const {
    std::vector<SequenceId> list;
    for (const auto& [id, seeds] : engine_.sequences()) list.push_back(id);
    return list;
  }
  std::int64_t length_of(SequenceId id) const { return std::ssize(engine_.sequences().at(id)); }

  void change_sequences() {
    const std::vector<SequenceId> list = ids();
    const bool is_room = std::ssize(list) < options_.max_sequences;
    if (is_room && (list.empty() || below(3) == 0)) {
      ASSERT_NE(engine_.create_sequence(), kNoSequence);
    }
    if (list.empty()) return;
    const SequenceId chosen = list[below(list.size())];
    const std::int64_t length = length_of(chosen);
    const std::uint64_t roll = below(10);
    if (roll < 2 && is_room && length > 0) {
      const auto kept = static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length) + 1));
      ASSERT_NE(engine_.fork(chosen, below(2) == 0 ? length : kept), kNoSequence);
      ++num_forks_;
    } else if (roll < 5 && length > 2) {
      ASSERT_OK(engine_.truncate(chosen, length - static_cast<std::int64_t>(1 + below(2))));
    } else if (roll < 6 && length > 0) {
      ASSERT_OK(engine_.truncate(
          chosen, static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length)))));
    } else if (roll < 7 || length > options_.max_length) {
      ASSERT_OK(engine_.destroy(chosen));
    }
  }

  std::vector<AppendDemand> choose_demands() {
    std::vector<AppendDemand> demands;
    for (const SequenceId id : ids()) {
      if (below(8) == 0) continue;  // sits this step out
      const bool is_decode = length_of(id) > 0 && below(3) != 0;
      const auto chunk = static_cast<std::int32_t>(
          below(static_cast<std::uint64_t>(options_.max_chunk) + 1));  // 0 is valid
      demands.push_back({id, is_decode ? 1 : chunk});
    }
    std::shuffle(demands.begin(), demands.end(), random_);
    return demands;
  }

  void play_step() {
    for (int i = 0; i < 2; ++i) change_sequences();
    if (::testing::Test::HasFatalFailure()) return;
    std::vector<AppendDemand> demands = choose_demands();
    Status status = engine_.step(demands);
    while (!status && status.code == StatusCode::exhausted && demands.size() > 1) {
      const auto failed = engine_.cache().failed_demand();
      ASSERT_TRUE(failed >= 0 && failed < std::ssize(demands));
      ASSERT_EQ(demands[static_cast<std::size_t>(failed)].sequence.value, status.subject);
      ASSERT_OK(engine_.destroy(demands.back().sequence));
      demands.pop_back();
      ++num_preemptions_;
      status = engine_.step(demands);
    }
    ASSERT_OK(status);
  }

  void compare_all_bytes() {
    ASSERT_OK(engine_.finish());
    for (const SequenceId id : ids()) engine_.compare_bytes(id);
  }

  ShadowEngine& engine_;
  GameOptions options_;
  std::mt19937_64 random_;
  std::int64_t num_preemptions_ = 0;
  std::int64_t num_forks_ = 0;
};

}  // namespace kvarena::test
