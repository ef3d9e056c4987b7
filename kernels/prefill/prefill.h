#pragma once

/// @file
/// Prefill attention on CUDA: causal attention of many query tokens a sequence over paged K and V,
/// in chunks or all at once, in either tile order. There are three kernels. The Hopper kernel
/// serves devices of compute capability 9.0, q of a 16-bit type, and K and V of the same type or
/// fp8 in chunked order with one head_dim 64, 80, 96, 128, 192 or 256, through contiguous block
/// tables. Tokens of fp8 with 80 dims have no chunked order; it reads them in `rows` order. It
/// needs zeroed counters, and a plan for more than 32 rows. The tensor core kernel serves 16-bit q,
/// K and V of the same type or fp8 with their scales, with K and V of one head_dim 64, 80, 96, 128,
/// 192 or 256. The plain kernel computes in f32 and serves every other pair of types, and any
/// head_dim up to 1024. Lengths and offsets are read on the device, so a captured graph stays right
/// while they change. No allocation, no synchronisation.

#include "kernels/params.h"
#include "kernels/prefill/prefill_plan.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Loads the kernels for K and V of this type and head_dim (load_kernel.h).
Status load_prefill(DType kv_dtype, std::int32_t head_dim) noexcept;

/// Loads the kernel of the plan.
Status load_prefill_plan() noexcept;

/// Queues attention of all rows, except those that min_q_len and row_slots leave out. Tokens past a
/// row's length are not read. Returns invalid_argument (pointer, alignment, num_q_heads,
/// num_tokens, ...), unsupported (dtype, head_dim, tile_order) or device_error; nothing is queued
/// then.
Status launch_prefill(const PrefillParams& params, cudaStream_t stream) noexcept;

/// Returns whether launch_prefill takes the Hopper kernel for these params.
bool takes_hopper_kernel(const PrefillParams& params) noexcept;

/// Queues the plan of the rows of `params` into `params.plan`, prefill_plan_bytes(num_rows) bytes.
/// It serves every layer of a step that has the same rows and shape, with any window. Only the
/// batch, q_offsets, num_q_heads and the shape of K matter. Queues nothing for up to
/// kRowsWithoutPlan rows. Returns invalid_argument (pointer, alignment) or device_error.
Status launch_prefill_plan(const PrefillParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
