#pragma once

/// @file
/// A step from its slot of the staging ring to the arrays that its kernels read, on CUDA: table
/// entries, lengths and the slots of new tokens. One launch of one thread block that reads staging
/// memory through the bus, once. Which step it is for is a word of the parameters or, so that a
/// captured launch serves every step, a word on the device. No allocation, no synchronisation.
///
/// Arrays are written as far as the step reaches and cleared as far as the launch before it wrote,
/// not to their ends. A launch that does not find its step skips every row and counts a miss.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Queues it. Returns invalid_argument (pointer, alignment) or device_error; nothing is queued
/// then.
Status launch_scatter_step(const ScatterStepParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
