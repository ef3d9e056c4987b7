#pragma once

/// @file
/// The append to planes of fp8 e4m3 with a scale for each token and head
/// (ScaleKind::per_token_head, and the keys of a sparse-attention index), in device memory and in
/// either tile order: converts tokens of f32, f16 or bf16. A scale is the smallest power of two
/// with which no finite element is more than 448, and at least 2^-100. Capturable.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Loads the kernel (load_kernel.h).
Status load_scaled_append() noexcept;

/// Queues the append of K, and of V unless it is a part of K. `params` has been checked. Returns
/// unsupported (dtype) for other types of new tokens, (scale) when only one of the planes has such
/// scales, or device_error.
Status launch_scaled_append(const AppendParams& params, bool overlap, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
