#pragma once

/// @file
/// A step from its slot of the staging ring to the arrays that its kernels read, on CUDA: table
/// entries, lengths and the slots of new tokens. One launch of one thread block that reads staging
/// memory through the bus, once; which slot, and whether it holds a step, is decided on the device,
/// so a captured launch serves every step. No allocation, no synchronisation.
///
/// Arrays are written as far as the step reaches and cleared as far as the launch before it wrote,
/// not to their ends. A launch that finds no step skips every row, counts a miss and goes on
/// waiting for the same step.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Queues it. Returns invalid_argument (pointer, alignment) or device_error; nothing is queued
/// then.
Status launch_scatter_step(const ScatterStepParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
