#pragma once

/// @file
/// Whether a step on CUDA looks for rows whose tables begin with the same blocks. Pure.

#include "kvarena/base/views.hpp"
#include "kvarena/blocktable/sequences.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// What the rows of a step must have in common to gain when their common blocks are read once.
struct SharingThreshold {
  std::int32_t block = 0;  ///< index of the last block of the shortest common beginning that gains
  std::int64_t sharers = 0;  ///< this many rows at least must have the same block there
};

/// Returns the threshold of a step with these rows over the blocks of `kv`. At least 8 rows must
/// have 512 tokens in common. Over fp8 K and V their other tokens take longer in that kernel than
/// in decode attention: half of all rows must have half of the mean length in common. These are
/// measured (docs/benchmarks.md). O(rows).
SharingThreshold sharing_threshold(std::span<const AppendedRow> rows,
                                   const KvLayerView& kv) noexcept;

}  // namespace kvarena
