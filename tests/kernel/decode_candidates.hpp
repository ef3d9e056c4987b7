#pragma once

/// @file
/// The part lengths that the schedule of decode attention chooses from, found one by one.

#include "kernels/decode/decode_choice.h"

#include <algorithm>
#include <cstdint>

namespace kvarena::test {

/// Returns the candidate of `waves` waves: lengths are tried one by one between two bounds.
inline kernels::Candidate candidate_of(const kernels::StepCounts& counts,
                                       const kernels::CutShape& shape, std::int32_t waves) {
  const std::int32_t rows = counts.rows();
  const std::int32_t most = kernels::parts_of_waves(shape, waves);
  std::int32_t length = counts.longest;
  if (most > rows) {
    // Of length l there are between steps / l and rows + (steps - rows) / l parts.
    const auto steps = static_cast<std::int64_t>(counts.steps());
    const std::int64_t low = (steps + most - 1) / most;
    const std::int64_t high = (steps - rows + most - rows - 1) / (most - rows);
    length = std::max(static_cast<std::int32_t>(low), kernels::smallest_length(shape, counts.bits));
    const std::int32_t end = std::min(static_cast<std::int32_t>(high), counts.longest);
    while (length < end && kernels::count_parts(counts, length) > most) ++length;
    length = std::min(length, counts.longest);
  }
  return {kernels::cost_of(counts, shape, length, kernels::count_parts(counts, length)), length};
}

}  // namespace kvarena::test
