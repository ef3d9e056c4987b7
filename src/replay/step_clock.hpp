#pragma once

/// @file
/// `StepClock`: computes how long a step of the engine takes, by fixed costs of its tokens or by a
/// GPU's roofline. One thread at a time.

#include "replay/replay_options.hpp"

#include "kvarena/capacity/step_time.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace kvarena::replay {

struct StepLoad {
  std::int64_t prompt_tokens = 0;               ///< of all sequences, recomputed ones included
  std::int64_t decode_tokens = 0;               ///< one for each sequence that decodes
  std::span<const capacity::StepTimeRow> rows;  ///< sequence by sequence
};

class StepClock {
 public:
  virtual ~StepClock() = default;
  /// Returns the nanoseconds of a step with at least one token; nullopt when they leave the range
  /// of 64 bits.
  virtual std::optional<std::int64_t> step_ns(const StepLoad& load) const = 0;
};

/// Makes the clock that `options` choose. Requires a clock other than `linear`.
std::unique_ptr<StepClock> make_step_clock(const ReplayOptions& options);

}  // namespace kvarena::replay
