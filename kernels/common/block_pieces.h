#pragma once

/// @file
/// Cutting whole blocks into pieces for thread blocks; copying and scrubbing share it. Host code;
/// pure.

#include "kernels/common/launch_checks.h"
#include "kernels/params.h"

#include <cuda_runtime_api.h>

#include <algorithm>

namespace kvarena::kernels {

inline constexpr int kPieceThreads = 1024;  ///< most threads of a thread block
inline constexpr int kPieceUnits = 2;       ///< units that a thread moves at once

/// Returns ok when the planes of a copy, and `count` list entries at `list`, can be addressed. With
/// `has_gaps` not every id is that of a block, so that a block may be longer than a stride.
inline Status check_blocks(const CopyBlocksParams& p, const void* list, std::int64_t count,
                           bool has_gaps = false) noexcept {
  if (Status s = in_range(Resource::num_blocks, p.num_blocks, 1, KvLayout::kMaxBlocks); !s)
    return s;
  if (Status s = in_range(Resource::num_planes, p.num_planes, 1, 65535); !s) return s;
  const std::int64_t longest = has_gaps ? p.block_stride * p.num_blocks : p.block_stride;
  if (Status s = in_range(Resource::block_bytes, p.bytes, 0, longest); !s) return s;
  if (Status s = in_range(Resource::capacity, count, 0, KvLayout::kMaxBlocks); !s) return s;
  if (count == 0 || p.bytes == 0) return {};
  if (Status s = not_null(p.base); !s) return s;
  return not_null(list);
}

/// Returns whether blocks can be moved in units of 16 bytes.
inline bool has_wide_units(const CopyBlocksParams& p) noexcept {
  return is_aligned(p.base, 16) && (p.bytes | p.block_stride | p.plane_stride) % 16 == 0;
}

/// Returns a launch with one thread block for each piece of blockDim.x * kPieceUnits units. x
/// counts the pieces of a block's `bytes` in a plane, y the list entries (the kernel strides over
/// those that do not fit), z the planes.
inline cudaLaunchConfig_t piece_launch(std::int64_t bytes, std::int64_t count,
                                       std::int64_t num_planes, int unit_bytes,
                                       cudaStream_t stream) noexcept {
  const std::int64_t units = (bytes + unit_bytes - 1) / unit_bytes;
  // Small blocks get no more warps than they need.
  const std::int64_t warps = (units + 32 * kPieceUnits - 1) / (32 * kPieceUnits);
  const std::int64_t threads = std::min<std::int64_t>(kPieceThreads, 32 * warps);
  const std::int64_t piece = threads * kPieceUnits;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((units + piece - 1) / piece),
                        static_cast<unsigned>(std::min<std::int64_t>(count, 65535)),
                        static_cast<unsigned>(num_planes));
  config.blockDim = dim3(static_cast<unsigned>(threads), 1, 1);
  config.stream = stream;
  return config;
}

}  // namespace kvarena::kernels
