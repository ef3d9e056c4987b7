#pragma once

/// @file
/// `StepClock`: how long a step of the engine takes. Either its tokens at fixed costs, or what a
/// GPU needs by its roofline. One thread at a time.

#include "replay/replay_options.hpp"

#include "kvarena/capacity/step_time.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace kvarena::replay {

/// What a step computes.
struct StepLoad {
  std::int64_t prompt_tokens = 0;               ///< of all sequences, recomputed ones included
  std::int64_t decode_tokens = 0;               ///< one for each sequence that decodes
  std::span<const capacity::StepTimeRow> rows;  ///< sequence by sequence
};

/// Times steps.
class StepClock {
 public:
  virtual ~StepClock() = default;
  /// Nanoseconds of a step with at least one token; nullopt where they leave the range of 64 bits.
  virtual std::optional<std::int64_t> step_ns(const StepLoad& load) const = 0;
};

/// The clock that `options` choose; any but the linear one.
std::unique_ptr<StepClock> make_step_clock(const ReplayOptions& options);

}  // namespace kvarena::replay
