#pragma once

/// @file
/// Scattering a step on CUDA: table entries, lengths and the slots of new tokens are copied from a
/// slot of the staging ring to the arrays that the step's kernels read. One launch of one thread
/// block reads the staging memory over the bus, once. A word of the parameters names the step. In a
/// captured launch a word on the device names it, so that the launch serves every step. No
/// allocation, no synchronisation.
///
/// A launch writes the arrays as far as the step reaches. It clears them as far as the launch
/// before it wrote, not to their ends. A launch that does not find its step skips every row and
/// counts a miss.

#include "kernels/params.h"
#include "kernels/scatter_step/staged_states.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Steps of several parts and groups of states, which one launch takes.
struct ScatterPartsParams {
  static constexpr std::int32_t kMostParts = 16;
  static constexpr std::int32_t kMostStates = 8;
  ScatterStepParams parts[kMostParts];
  ScatterStatesParams states[kMostStates];
};
static_assert(sizeof(ScatterPartsParams) < 4000, "kernel parameters have 4 KiB");

/// Loads the kernels (load_kernel.h).
Status load_scatter_step() noexcept;

/// Queues the scatter of a step. Returns invalid_argument (pointer, alignment) or device_error;
/// nothing is queued then.
Status launch_scatter_step(const ScatterStepParams& params, cudaStream_t stream) noexcept;

/// Queues the scatter of a step of `num_parts` parts, up to kMostParts, and `num_states` groups of
/// states, up to kMostStates; one of them at least. A part whose `slots` are null has no slots: the
/// new tokens of its rows see the row's tokens and are not among them. Returns what
/// launch_scatter_step returns, or invalid_argument (num_groups).
Status launch_scatter_parts(const ScatterPartsParams& params, std::int32_t num_parts,
                            std::int32_t num_states, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
