#pragma once

/// @file
/// Scrubbing blocks on CUDA: writes zeros behind the tokens that a sequence keeps, over what
/// another owner left. The list is host memory and is copied into the parameters of the launches,
/// so the caller may reuse it at once. One launch takes kMaxScrubs entries. No allocation, no
/// synchronisation.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Entries of one launch. They fit into the 4 KB that every driver allows for a kernel's
/// parameters.
inline constexpr int kMaxScrubs = 320;

/// Loads the kernels (load_kernel.h).
Status load_scrub() noexcept;

/// Queues the scrubbing. Returns invalid_argument (num_planes for the layers, block_bytes,
/// alignment, capacity, pointer, what check_layer returns, or block_index and num_tokens of an
/// entry) with nothing queued, or device_error, after which some entries may be queued.
Status launch_scrub(const ScrubParams& params, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
