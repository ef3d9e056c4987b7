#include "kernels/copy_blocks/copy_blocks.h"

#include "kernels/common/load_kernel.h"
#include "kernels/copy_blocks/copy_blocks.cuh"

namespace kvarena::kernels {

Status load_copy_blocks() noexcept {
  return load_kernels(copy_block_pieces<uint4>, copy_block_pieces<std::uint8_t>);
}

namespace {

/// Queues the copies of checked params.
Status launch(const CopyBlocksParams& p, cudaStream_t stream) noexcept {
  if (p.num_copies == 0 || p.bytes == 0) return {};
  const bool wide = has_wide_units(p);
  const cudaLaunchConfig_t config =
      piece_launch(p.bytes, p.num_copies, p.num_planes, wide ? 16 : 1, stream);
  return launch_status(cudaLaunchKernelEx(
      &config, wide ? copy_block_pieces<uint4> : copy_block_pieces<std::uint8_t>, p));
}

}  // namespace

Status launch_copy_blocks(const CopyBlocksParams& p, cudaStream_t stream) noexcept {
  const Status s = check_blocks(p, p.copies, p.num_copies);
  return s ? launch(p, stream) : s;
}

Status launch_copy_paged_blocks(const CopyBlocksParams& p, cudaStream_t stream) noexcept {
  const Status s = check_blocks(p, p.copies, p.num_copies, true);
  return s ? launch(p, stream) : s;
}

}  // namespace kvarena::kernels
