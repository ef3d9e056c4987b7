#pragma once

/// @file
/// Scrubbing blocks on CUDA: zeros in place of what another owner left, behind the tokens that a
/// sequence keeps. The list is host memory and travels in the parameters of the launches, so that
/// it may be reused at once: one launch for every kMaxScrubs entries. No allocation, no
/// synchronisation.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Entries of one launch: what fits the 4 KB of a kernel's parameters on every driver.
inline constexpr int kMaxScrubs = 320;

/// Queues it. Returns invalid_argument (num_layers, block_bytes, capacity, pointer, as check_layer;
/// block_index, num_tokens of an entry), with nothing queued, or device_error: some entries may be
/// queued then.
Status launch_scrub(const ScrubParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
