#pragma once

/// @file
/// `CudaBlocks`: queues the work on whole blocks of a CUDA backend's pool: copies on write and
/// scrubs. It holds plain numbers. The arena must outlive it. A pool with groups has its own
/// scrubs.

#include "cache/scrub_params.hpp"
#include "cache/scrub_planner.hpp"
#include "kernels/params.h"
#include "kvarena/allocator/arena.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena {

/// The block work of one pool. Launches go to a native stream whose GPU is current, and return what
/// the kernels' launchers return.
class CudaBlocks {
 public:
  /// With `scrubs`, launch_scrubs alone makes the copies on write.
  CudaBlocks(const Arena& arena, bool scrubs);

  /// Queues copies on write. `copies` is device memory. Can be captured.
  Status launch_copies(const BlockCopy* copies, std::int64_t num_copies, void* stream) const;
  /// Queues scrubs. The list is read before the call returns.
  Status launch_scrubs(std::span<const kernels::BlockScrub> scrubs, void* stream) const;

 private:
  std::vector<kernels::CopyBlocksParams> copies_;  // one for each launch, without a list
  kernels::ScrubParams scrub_;                     // without a list
};

/// Queues the scrubs of a pool with groups, copies before the others in each plan. `params` are
/// those of group_scrub_params.
Status launch_group_scrubs(std::span<const std::vector<kernels::ScrubParams>> params,
                           std::span<const ScrubPlan> plans, void* stream);

}  // namespace kvarena
