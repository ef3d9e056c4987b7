#pragma once

/// @file
/// Filling whole blocks of a pool with one byte on CUDA. Arrays of the params are device memory;
/// blocks outside the pool are skipped. One launch, no allocation, no synchronisation, capturable.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Queues the fill. Returns invalid_argument (pointer, block_bytes, num_blocks, num_planes,
/// capacity) or device_error; nothing is queued then.
Status launch_scrub(const ScrubParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
