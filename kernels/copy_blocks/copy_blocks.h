#pragma once

/// @file
/// Block copies within a pool on CUDA. Arrays of the params are device memory. A copy whose source
/// or target lies outside the pool is skipped. One launch, no allocation, no synchronisation,
/// capturable. A whole block is copied, with slots that hold no token yet: their bytes are one run
/// with the others, and nobody reads them as values. compute-sanitizer's initcheck reports these
/// reads.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Loads the kernels (load_kernel.h).
Status load_copy_blocks() noexcept;

/// Queues the copies. Targets must be distinct, and no target may be the source of another copy.
/// Returns invalid_argument (pointer, block_bytes, num_blocks, num_planes, capacity) or
/// device_error; nothing is queued then.
Status launch_copy_blocks(const CopyBlocksParams& params, cudaStream_t stream) noexcept;

/// As launch_copy_blocks, for ids that are not all those of blocks, as in a pool of pages: a block
/// may be longer than the stride of ids. The last block ends inside the pool.
Status launch_copy_paged_blocks(const CopyBlocksParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
