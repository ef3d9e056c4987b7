#pragma once

/// @file
/// `MixedSequences`: sequences in a cache with groups of layers, for the scenario groups. They come
/// until one is refused; the oldest make room for it; they grow until a step is refused and the
/// newest give way; the others decode, and all end. K and V are not written. It borrows what it is
/// given. One thread at a time.

#include "scenarios/engine.hpp"
#include "scenarios/report.hpp"
#include "scenarios/suite.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::scenarios {

class MixedSequences {
 public:
  static constexpr std::int32_t kMost = 64;  ///< at a time, and in a step

  /// `cache` has room for kMost sequences, and for a block of each in a step.
  MixedSequences(const ScenarioContext& context, ScenarioReport& report, KvCache& cache) noexcept
      : context_(context), report_(report), cache_(cache) {}

  /// Writes figures and checks into the report.
  MaybeFailure run();

 private:
  MaybeFailure admit();
  MaybeFailure make_room(SequenceId refused, std::int64_t tokens);
  MaybeFailure decode();
  MaybeFailure grow_all(std::int32_t tokens);
  MaybeFailure end(SequenceId sequence);
  MaybeFailure end_newest();
  StepOutcome grow(SequenceId sequence, std::int64_t tokens);
  StepOutcome step(std::span<const AppendDemand> demands, Urgency urgency);
  void expect_refused(const Status& refused);
  void expect_whole(const char* what);

  const ScenarioContext& context_;
  ScenarioReport& report_;
  KvCache& cache_;
  std::vector<SequenceId> running_;  // by age
  std::int64_t admitted_ = 0;
  std::int64_t preemptions_ = 0;
  std::int64_t refusals_with_changes_ = 0;
};

}  // namespace kvarena::scenarios
