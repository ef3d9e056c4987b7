#pragma once

/// @file
/// `CudaBlocks`: what a CUDA backend queues on whole blocks of its pool: copies on write and
/// scrubs. Plain numbers; the arena must outlive it.

#include "cache/scrub_planner.hpp"
#include "kernels/params.h"
#include "kvarena/allocator/arena.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// Of one pool. Launches go to a native stream whose GPU is current, and return what the kernels'
/// launchers do.
class CudaBlocks {
 public:
  /// With `scrubs` copies on write are made by launch_scrubs alone.
  CudaBlocks(const Arena& arena, bool scrubs);

  /// `copies` is device memory. Can be captured.
  Status launch_copies(const BlockCopy* copies, std::int64_t num_copies, void* stream) const;
  /// The plan's lists are read before this returns.
  Status launch_scrubs(std::span<const kernels::BlockScrub> scrubs, void* stream) const;

 private:
  std::vector<kernels::CopyBlocksParams> copies_;  // one for each launch; without a list
  kernels::ScrubParams scrub_;                     // without a list
};

}  // namespace kvarena
