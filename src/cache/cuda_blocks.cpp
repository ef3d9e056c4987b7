#include "cache/cuda_blocks.hpp"

#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/scrub/scrub.h"

#include <span>

namespace kvarena {
namespace {

/// Returns the copies of whole blocks: one launch in block-major order. In layer-major order it is
/// one launch for the K planes and one for the V planes, because their sizes may differ.
std::vector<kernels::CopyBlocksParams> copies_of(const Arena& arena) {
  const KvLayout& layout = arena.layout();
  const std::int64_t num_blocks = arena.num_blocks();
  if (arena.order() == BlockOrder::block_major) {
    return {{.base = arena.base(),
             .block_stride = layout.block_bytes(),
             .bytes = layout.block_bytes(),
             .copies = nullptr,
             .num_copies = 0,
             .num_blocks = num_blocks}};
  }
  std::vector<kernels::CopyBlocksParams> all;
  const std::int64_t layer_stride = layout.block_bytes() / layout.num_layers() * num_blocks;
  for (const PlaneKind kind : {PlaneKind::key, PlaneKind::value}) {
    const std::int32_t plane = layout.plane_of(0, kind);
    all.push_back({.base = arena.base() + layout.plane_offset(plane, arena.order(), num_blocks),
                   .block_stride = layout.block_stride(plane, arena.order()),
                   .bytes = layout.plane_bytes(plane),
                   .copies = nullptr,
                   .num_copies = 0,
                   .num_blocks = num_blocks,
                   .num_planes = layout.num_layers(),
                   .plane_stride = layer_stride});
  }
  return all;
}

}  // namespace

CudaBlocks::CudaBlocks(const Arena& arena, bool scrubs) : scrub_(scrub_params(arena)) {
  if (!scrubs) copies_ = copies_of(arena);
}

Status CudaBlocks::launch_copies(const BlockCopy* copies, std::int64_t num_copies,
                                 void* stream) const {
  for (kernels::CopyBlocksParams params : copies_) {
    params.copies = copies;
    params.num_copies = num_copies;
    if (Status s = kernels::launch_copy_blocks(params, static_cast<cudaStream_t>(stream)); !s) {
      return s;
    }
  }
  return {};
}

Status CudaBlocks::launch_scrubs(std::span<const kernels::BlockScrub> scrubs, void* stream) const {
  kernels::ScrubParams params = scrub_;
  params.scrubs = scrubs.data();
  params.num_scrubs = std::ssize(scrubs);
  return kernels::launch_scrub(params, static_cast<cudaStream_t>(stream));
}

Status launch_group_scrubs(std::span<const std::vector<kernels::ScrubParams>> params,
                           std::span<const ScrubPlan> plans, void* stream) {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    for (const std::span<const kernels::BlockScrub> list : {plans[i].copies, plans[i].clears}) {
      if (list.empty()) continue;
      for (kernels::ScrubParams its : params[i]) {
        its.scrubs = list.data();
        its.num_scrubs = std::ssize(list);
        if (Status s = kernels::launch_scrub(its, static_cast<cudaStream_t>(stream)); !s) return s;
      }
    }
  }
  return {};
}

}  // namespace kvarena
