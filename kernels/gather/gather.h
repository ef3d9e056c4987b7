#pragma once

/// @file
/// Gather, scatter and layout conversion on CUDA: tokens of a sequence to contiguous [tokens,
/// heads, dim] memory and back, and blocks from one pool to another of other tile order or element
/// type. Types as append, and from fp8 too. Arrays of the params are device memory; tokens whose
/// table entry lies outside the pool, and copies that do, are skipped. No allocation, no
/// synchronisation, capturable.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Queues reading a sequence's tokens; outputs of skipped tokens stay as they are. The row's table
/// must cover all positions. Returns invalid_argument (pointer, alignment, num_tokens,
/// num_sequences, token_index, ...), unsupported (dtype, tile_order, head_dim) or device_error;
/// nothing is queued then.
Status launch_gather(const GatherParams& params, cudaStream_t stream) noexcept;

/// Queues writing them back. Returns as launch_gather.
Status launch_scatter(const ScatterParams& params, cudaStream_t stream) noexcept;

/// Queues the conversion of blocks. Targets must be distinct, and no target may be a source.
/// Returns as launch_gather, also when heads, dims or block size differ between the pools.
Status launch_convert_blocks(const ConvertBlocksParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
