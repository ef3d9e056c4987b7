#include "kernels/copy_states/copy_states.h"

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"
#include "kernels/copy_states/copy_states.cuh"

#include <algorithm>

namespace kvarena::kernels {
namespace {

constexpr std::int64_t kUnit = 16;
constexpr std::int64_t kMostSms = 4096;
/// Pieces of all copies, counted in 32 bits by a kernel that steps by its thread blocks.
constexpr std::int64_t kMostPieces = std::int64_t{1} << 31;
constexpr std::int64_t kBlocksPerSm = 2;

Status check(const CopyStatesParams& p) noexcept {
  if (Status s = in_range(Resource::num_blocks, p.num_slots, 1, KvLayout::kMaxBlocks); !s) return s;
  if (Status s = in_range(Resource::alignment, (p.bytes | p.slot_stride) % kUnit, 0, 0); !s) {
    return s;
  }
  if (Status s = in_range(Resource::block_bytes, p.bytes, 0, p.slot_stride * p.num_slots); !s) {
    return s;
  }
  if (Status s = in_range(Resource::capacity, p.max_copies, 0, KvLayout::kMaxBlocks); !s) return s;
  if (Status s = in_range(Resource::device, p.num_sms, 1, kMostSms); !s) return s;
  if (p.max_copies == 0 || p.bytes == 0) return {};
  if (Status s = aligned_pointer(p.base, kUnit); !s) return s;
  if (Status s = not_null(p.copies); !s) return s;
  return not_null(p.num_copies);
}

}  // namespace

Status load_copy_states() noexcept { return load_kernels(copy_state_pieces); }

Status launch_copy_states(const CopyStatesParams& p, cudaStream_t stream) noexcept {
  if (Status s = check(p); !s) return s;
  if (p.max_copies == 0 || p.bytes == 0) return {};
  const std::int64_t units = p.bytes / kUnit;
  // Small slots get no more warps than they need.
  const std::int64_t warps = (units + 32 * kStateUnits - 1) / (32 * kStateUnits);
  const std::int64_t threads = std::min<std::int64_t>(kStateThreads, 32 * warps);
  const std::int64_t pieces = (units + threads * kStateUnits - 1) / (threads * kStateUnits);
  if (Status s = in_range(Resource::capacity, p.max_copies, 0, kMostPieces / pieces); !s) return s;
  const std::int64_t at_once = std::int64_t{p.num_sms} * kBlocksPerSm * (kStateThreads / threads);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(p.max_copies * pieces, at_once)));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return launch_status(
      cudaLaunchKernelEx(&config, copy_state_pieces, p, static_cast<std::uint32_t>(pieces)));
}

}  // namespace kvarena::kernels
