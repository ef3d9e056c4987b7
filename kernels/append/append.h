#pragma once

/// @file
/// Append on CUDA: K and V of new tokens into a paged pool in either tile order, any pair of f32,
/// f16 and bf16, and those to fp8 e4m3 (divided by its scale, saturating). Arrays of the params are
/// device memory; slots and table entries outside the pool are skipped. One launch (two when K and
/// V differ in type or dim); no allocation, no synchronisation, capturable.
///
/// With `overlap` a launch is programmatic: it may begin while the kernel before it on the stream
/// is finishing. It reads slots, runs and tables before that kernel has completed, which must not
/// have written them; key and value are read, and the pool is written, after.

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
