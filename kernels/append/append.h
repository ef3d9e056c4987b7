#pragma once

/// @file
/// Append on CUDA: K and V of new tokens into a paged pool in either tile order, any pair of f32,
/// f16 and bf16, and those to fp8 e4m3 (divided by its scale, saturating). Arrays of the params are
/// device memory; slots and table entries outside the pool are skipped. One launch (two when K and
/// V differ in type or dim); no allocation, no synchronisation, capturable.
///
/// With `overlap` a launch is programmatic: it may begin while kernels before it on the stream are
/// running. It reads key and value, and writes, only after they have completed, but slots, runs and
/// tables before. Whatever wrote those needs a launch without `overlap` between itself and this
/// one: the first layer of a step appends without it, the others with it.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Queues the append by slot mapping; slots must be distinct. Returns invalid_argument (pointer,
/// alignment, num_tokens, block_size, ...), unsupported (dtype, tile_order, head_dim) or
/// device_error; nothing is queued then.
Status launch_append(const AppendParams& params, bool overlap, cudaStream_t stream) noexcept;

/// Queues the append by runs; their positions must be distinct. Returns as launch_append.
Status launch_append_runs(const AppendRunsParams& params, bool overlap,
                          cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
