#pragma once

/// @file
/// The append to a pool in the format latent_fp8 (latent_fp8.hpp), in device memory: converts
/// latents of f32, f16 or bf16. A run of 128 elements has the smallest power of two as its scale
/// with which none of its finite values is more than 448, and at least 2^-100, so that scaling
/// rounds nothing. Capturable.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Loads the kernel (load_kernel.h).
Status load_latent_append() noexcept;

/// Queues the append of K; V is a part of it. `params` has been checked. Returns unsupported
/// (dtype) for a V that is not in K or for other types of new latents, or device_error.
Status launch_latent_append(const AppendParams& params, bool overlap, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
