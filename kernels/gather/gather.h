#pragma once

/// @file
/// Gather, scatter and layout conversion on CUDA. Gather copies tokens of a sequence to contiguous
/// [tokens, heads, dim] memory, and scatter copies them back. Conversion copies blocks to another
/// pool with another tile order or element type. The types are those of append, and fp8 as the
/// source too. Arrays of the params are device memory. Tokens and copies whose table entry or block
/// lies outside the pool are skipped. No allocation, no synchronisation, capturable.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Queues the reading of a sequence's tokens. Outputs of skipped tokens are not written. The row's
/// table must cover all positions. Returns invalid_argument (pointer, alignment, num_tokens,
/// num_sequences, token_index, ...), unsupported (dtype, tile_order, head_dim) or device_error;
/// nothing is queued then.
Status launch_gather(const GatherParams& params, cudaStream_t stream) noexcept;

/// Queues the writing of a sequence's tokens. Returns what launch_gather returns.
Status launch_scatter(const ScatterParams& params, cudaStream_t stream) noexcept;

/// Queues the conversion of blocks. Targets must be distinct, and no target may be a source.
/// Returns what launch_gather returns, also when heads, dims or block size differ between the
/// pools.
Status launch_convert_blocks(const ConvertBlocksParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
