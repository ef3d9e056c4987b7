#pragma once

/// @file
/// Append on CUDA: writes K and V of new tokens into a paged pool in either tile order. Source and
/// pool may be any pair of f32, f16 and bf16. An fp8 e4m3 pool takes each of these; values are
/// divided by its scale and saturate. A pool in the format latent_fp8 (latent_append.h) or with
/// scales for each token and head (scaled_append.h) takes them by slot mapping alone. Arrays of the
/// params are device memory. Slots and table entries outside the pool are skipped. One launch, or
/// two when K and V differ in type or dim. No allocation, no synchronisation, capturable.
///
/// With `overlap` a launch is programmatic: it may begin while the kernel before it on the stream
/// is finishing. It reads slots, runs and tables before that kernel has completed, so that kernel
/// must not write them. It reads key and value, and writes the pool, after that kernel has
/// completed.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Loads the kernels of the append by slot mapping to a pool of this type (load_kernel.h).
Status load_append(DType kv_dtype) noexcept;

/// Queues the append by slot mapping. Slots must be distinct. Returns invalid_argument (pointer,
/// alignment, num_tokens, block_size, ...), unsupported (dtype, tile_order, head_dim) or
/// device_error; nothing is queued then.
Status launch_append(const AppendParams& params, bool overlap, cudaStream_t stream) noexcept;

/// Queues the append by runs. Their positions must be distinct. Returns what launch_append returns.
Status launch_append_runs(const AppendRunsParams& params, bool overlap,
                          cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
