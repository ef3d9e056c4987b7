#pragma once

/// @file
/// How a step is cut into parts: the length of parts, the cut of a row, and the order of parts. The
/// schedule on the device and its test on the host share this arithmetic. Plain numbers, no CUDA.
///
/// A round is one unit for each warp of a thread block, or of all of a cluster. Parts are whole
/// rounds, so that the warps have equal shares. The choice counts in steps: one round, or a power
/// of two of rounds when a row is longer than kMaxSteps rounds.

#include "kernels/decode/decode_workspace.h"
#include "kvarena/base/export.hpp"

#include <cstdint>

namespace kvarena::kernels {

/// Most steps of a row. With kMaxDecodeRows rows, their sum fits 32 bits.
inline constexpr std::int32_t kMaxSteps = 2047;
static_assert(std::int64_t{kMaxSteps} * kMaxDecodeRows < (std::int64_t{1} << 32));

/// The units of a row that the schedule does not take.
inline constexpr std::int32_t kSkippedRow = -1;
/// Size classes of parts: eighths of the longest part, and 0.
inline constexpr std::int32_t kSizeClasses = 9;

/// Divides a number that is not negative by a positive one. Without signs, the device needs fewer
/// instructions.
KVARENA_HOST_DEVICE constexpr std::int32_t divide(std::int32_t a, std::int32_t b) noexcept {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b));
}
KVARENA_HOST_DEVICE constexpr std::int32_t divide_up(std::int32_t a, std::int32_t b) noexcept {
  return divide(a + b - 1, b);
}

/// What cuts parts: the launch, and what one part of all KV heads costs.
struct CutShape {
  std::int32_t warps;        ///< of a thread block, or of all of a cluster
  std::int32_t per_sm;       ///< thread blocks of a multiprocessor
  std::int32_t places;       ///< thread blocks, or clusters of them, that run at once
  std::int32_t heads;        ///< work items of a part: KV heads times column chunks
  std::int32_t most_parts;   ///< of rows that have units; each other row has one
  std::int32_t cluster = 1;  ///< thread blocks of a cluster
};

/// Returns what cuts parts, for the launch shape of a step.
inline CutShape cut_shape(const DecodeLimits& limits, const DecodeWorkspace& workspace) noexcept {
  const DecodeShape shape = decode_shape(limits);
  return {.warps = shape.warps * shape.cluster,
          .per_sm = shape.per_sm,
          .places = places_of(shape, limits.num_sms),
          .heads = limits.num_kv_heads * workspace.chunks,
          .most_parts = workspace.max_parts - limits.max_rows,
          .cluster = shape.cluster};
}

/// How rows are cut.
struct PartLength {
  std::int32_t units;            ///< most units of a part, whole rounds
  bool is_fixed;                 ///< rows of more than most_parts such parts get longer ones
  std::int32_t short_row = 0;    ///< units of the longest short row; only with fixed parts
  std::int32_t short_units = 0;  ///< most units of a part of a short row, whole rounds
  std::int32_t most_parts = 32;  ///< of a row, with fixed parts
};

/// Returns how rows are cut with fixed parts.
inline PartLength fixed_length(const DecodeLimits& limits) noexcept {
  const FixedParts parts =
      fixed_parts(limits.head_dim, std::int64_t{limits.num_kv_heads} * column_chunks(limits));
  return {fixed_part_units(limits, parts.tokens), true,
          parts.short_row / unit_tokens(limits.kv_dtype),
          fixed_part_units(limits, parts.short_tokens), parts.most_parts};
}

/// The cut of a row: into `parts` parts of `units` units, the last of which may have fewer.
struct RowCut {
  std::int32_t parts;
  std::int32_t units;
};

/// Returns the most units of a part of a row of `count` units.
KVARENA_HOST_DEVICE constexpr std::int32_t part_units(const PartLength& length, std::int32_t warps,
                                                      std::int32_t count) noexcept {
  if (!length.is_fixed) return length.units;
  const std::int32_t units = count <= length.short_row ? length.short_units : length.units;
  const std::int32_t least = divide_up(divide_up(count, length.most_parts), warps) * warps;
  return least > units ? least : units;
}

/// Cuts a row of `count` units. An empty row has one empty part, which writes zeros. A skipped row
/// has none.
KVARENA_HOST_DEVICE constexpr RowCut cut_row(const PartLength& length, std::int32_t warps,
                                             std::int32_t count) noexcept {
  if (count == kSkippedRow) return {0, 0};
  if (!length.is_fixed && count <= length.units) return {1, length.units};
  const std::int32_t most = part_units(length, warps, count);
  if (count <= most) return {1, most};
  const std::int32_t parts = divide_up(count, most);
  // Not more than `most`, which is a multiple of `warps`.
  return {parts, divide_up(divide_up(count, parts), warps) * warps};
}

/// Returns the size class of a row: the length of its parts, in eighths of the longest part.
KVARENA_HOST_DEVICE constexpr std::int32_t size_class_of(std::int32_t count, const RowCut& cut,
                                                         std::int32_t longest_part) noexcept {
  if (cut.parts == 0) return 0;
  const std::int32_t units = cut.parts == 1 ? count : divide(count, cut.parts);
  return divide(units * (kSizeClasses - 1), longest_part);
}

/// Returns the bits by which rounds are shifted to steps.
KVARENA_HOST_DEVICE constexpr std::int32_t step_bits(std::int32_t longest_rounds) noexcept {
  std::int32_t bits = 0;
  while (((longest_rounds - 1) >> bits) >= kMaxSteps) ++bits;
  return bits;
}
/// Returns the units that the last round of a row of `count` units lacks.
KVARENA_HOST_DEVICE constexpr std::int32_t missing_units(std::int32_t count,
                                                         std::int32_t warps) noexcept {
  return divide_up(count, warps) * warps - count;
}
/// Returns the steps of a row of `rounds` rounds, at least 1.
KVARENA_HOST_DEVICE constexpr std::int32_t steps_of(std::int32_t rounds,
                                                    std::int32_t bits) noexcept {
  return ((rounds - 1) >> bits) + 1;
}

/// The lengths of the rows that have units, in steps.
struct StepCounts {
  const std::int32_t* rows_up_to;      ///< [longest + 1] rows of at most that many steps
  const std::uint32_t* steps_up_to;    ///< [longest + 1] the sum of their steps
  const std::uint32_t* missing_up_to;  ///< [longest + 1] units that their last rounds lack
  std::int32_t longest;                ///< steps of the longest row, at least 1
  std::int32_t bits;                   ///< a step is 2^bits rounds

  KVARENA_HOST_DEVICE constexpr std::int32_t rows() const noexcept { return rows_up_to[longest]; }
  KVARENA_HOST_DEVICE constexpr std::uint32_t steps() const noexcept {
    return steps_up_to[longest];
  }
  /// Returns the units of rows of more than `length` steps. `step` is the units of a step.
  KVARENA_HOST_DEVICE constexpr float units_above(std::int32_t length, float step) const noexcept {
    return static_cast<float>(steps() - steps_up_to[length]) * step -
           static_cast<float>(missing_up_to[longest] - missing_up_to[length]);
  }
};

/// Counts the parts of all rows when a part has at most `length` steps: the rows longer than
/// 0, length, 2 * length .. steps.
KVARENA_HOST_DEVICE constexpr std::int32_t count_parts(const StepCounts& counts,
                                                       std::int32_t length) noexcept {
  const std::int32_t rows = counts.rows();
  std::int32_t parts = rows;
  for (std::int32_t at = length; at < counts.longest; at += length) {
    parts += rows - counts.rows_up_to[at];
  }
  return parts;
}

/// Returns the estimated time of a step, in units that a thread block reads, when there are `parts`
/// parts of at most `length` steps. The work items fit 31 bits.
KVARENA_HOST_DEVICE constexpr float cost_of(const StepCounts& counts, const CutShape& shape,
                                            std::int32_t length, std::int32_t parts) noexcept {
  // The cost of starting and ending a part, in units that a thread block, or a cluster, could have
  // read meanwhile.
  const float overhead = shape.cluster > 1   ? 24.0F * static_cast<float>(shape.cluster)
                         : shape.per_sm == 1 ? 24.0F
                                             : 6.0F;
  const auto step = static_cast<float>(std::int64_t{shape.warps} << counts.bits);
  const auto places = static_cast<float>(shape.places);
  // Parts longer than half of `length`: all but the rows that are no longer than that.
  const std::int32_t small = counts.rows_up_to[length / 2];
  const std::int32_t large = parts - small;
  const std::int32_t waves = divide_up(large * shape.heads, shape.places);
  const float mean =
      large == 0 ? 0.0F : counts.units_above(length / 2, step) / static_cast<float>(large);
  const float by_waves = static_cast<float>(waves) * (mean + overhead);
  const float work = counts.units_above(0, step) + overhead * static_cast<float>(parts);
  const float by_work = work * static_cast<float>(shape.heads) / places;
  const float longest = static_cast<float>(length) * step;
  const float uneven = static_cast<float>(small) / static_cast<float>(parts);
  float cost = by_waves > by_work ? by_waves : by_work;
  cost = cost > longest + overhead ? cost : longest + overhead;
  return cost + 0.25F * longest * uneven;
}

/// Returns the most parts of `waves` waves of work items.
KVARENA_HOST_DEVICE constexpr std::int32_t parts_of_waves(const CutShape& shape,
                                                          std::int32_t waves) noexcept {
  const std::int32_t parts = waves * shape.places / shape.heads;
  return parts < shape.most_parts ? parts : shape.most_parts;
}
/// Returns the fewest steps of a part. When thread blocks share a multiprocessor, each warp needs
/// at least two units to be worth the start of the block.
KVARENA_HOST_DEVICE constexpr std::int32_t smallest_length(const CutShape& shape,
                                                           std::int32_t bits) noexcept {
  return shape.per_sm == 1 || shape.cluster > 1 || bits > 0 ? 1 : 2;
}

/// A part length and its estimated cost. The candidate of `waves` waves, 1 .. kMaxWaves, is the
/// shortest length of which there are at most parts_of_waves(waves) parts; where there is none, it
/// is the longest row's. The cheapest candidate is the length of a step, of equal ones that of the
/// fewest waves.
struct Candidate {
  float cost;
  std::int32_t steps;
};

}  // namespace kvarena::kernels
