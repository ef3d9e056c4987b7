#pragma once

/// @file
/// Checks on a GPU that the block tables of a batch name only blocks of the pool. It is for
/// debugging engines that keep their own tables. The other kernels do not check their tables: a
/// wrong entry is an illegal address.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvarena::kernels {

/// The result: device memory, 8-byte aligned.
struct TableReport {
  std::uint64_t place;  ///< row << 32 | entry of the first wrong entry in row order; kNoPlace: none
  std::int32_t value;   ///< the wrong entry
  std::int32_t unused;
};
inline constexpr std::uint64_t kNoPlace = ~std::uint64_t{0};
static_assert(sizeof(TableReport) == 16);

/// Queues a check of every table entry that some query token of `params` needs. Of the params only
/// kv, batch, q_offsets and window_tokens are used. Returns invalid_argument (pointer, alignment)
/// or device_error.
Status launch_check_tables(const AttentionParams& params, TableReport* report,
                           cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
