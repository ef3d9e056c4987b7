#pragma once

/// @file
/// Prefill attention on CUDA: causal attention of many query tokens a sequence over paged K and V,
/// chunk by chunk or all at once, in either tile order. Two kernels: tensor cores where q, K and V
/// are of one 16-bit type and K and V of one head_dim 64, 96, 128 or 256; plain f32 arithmetic for
/// every other pair of types (fp8 K and V with their scales among them) and any head_dim up to
/// 1024. Lengths and offsets are read on the device, so a captured graph stays right while they
/// change. No allocation, no synchronisation, no workspace.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Queues attention of all rows. Tokens past a row's length are not read. Returns invalid_argument
/// (pointer, alignment, num_q_heads, num_tokens, ...), unsupported (dtype, head_dim, tile_order) or
/// device_error; nothing is queued then.
Status launch_prefill(const PrefillParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
