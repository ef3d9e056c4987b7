#pragma once

/// @file
/// Whether a batch's block tables on a GPU name blocks of the pool only: for debugging engines that
/// keep tables of their own. Kernels trust their tables; a wrong entry is an illegal address.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvarena::kernels {

/// What was found: device memory, 8-byte aligned.
struct TableReport {
  std::uint64_t place;  ///< row << 32 | entry of the first wrong one in row order; kNoPlace: none
  std::int32_t value;   ///< of that entry
  std::int32_t unused;
};
inline constexpr std::uint64_t kNoPlace = ~std::uint64_t{0};
static_assert(sizeof(TableReport) == 16);

/// Queues a look at every table entry that some query token of `params` needs. Of the params kv,
/// batch, q_offsets and window_tokens matter. Returns invalid_argument (pointer, alignment) or
/// device_error.
Status launch_check_tables(const AttentionParams& params, TableReport* report,
                           cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
