#include "kernels/scrub/scrub.h"

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"
#include "kernels/scrub/scrub.cuh"

#include <algorithm>

namespace kvarena::kernels {
namespace {

constexpr std::int64_t kMaxLayers = 4096;

/// Returns ok when tokens and heads of a plane lie without gaps, and its block has `bytes` bytes.
Status check_bytes(const PlaneView& plane, std::int32_t block_size, std::int64_t bytes) noexcept {
  const std::int64_t token = plane.head_dim * bytes_of(plane.dtype);
  if (Status s = in_range(Resource::alignment, plane.token_stride, token, token); !s) return s;
  const std::int64_t head = token * block_size;
  if (Status s = in_range(Resource::alignment, plane.head_stride, head, head); !s) return s;
  return in_range(Resource::block_bytes, bytes, head * plane.num_heads, plane.block_stride);
}

/// Checks the pool and every entry of the list.
Status check_scrub(const ScrubParams& p) noexcept {
  if (Status s = in_range(Resource::num_planes, p.num_layers, 1, kMaxLayers); !s) return s;
  if (Status s = in_range(Resource::capacity, p.num_scrubs, 0, KvLayout::kMaxBlocks); !s) return s;
  if (p.num_scrubs == 0) return {};
  if (Status s = check_layer(p.kv); !s) return s;
  if (Status s = check_bytes(p.kv.key, p.kv.block_size, p.key_bytes); !s) return s;
  if (p.value_bytes != 0) {
    if (Status s = check_bytes(p.kv.value, p.kv.block_size, p.value_bytes); !s) return s;
  }
  if (Status s = not_null(p.scrubs); !s) return s;
  for (std::int64_t i = 0; i < p.num_scrubs; ++i) {
    const BlockScrub& scrub = p.scrubs[i];
    for (const BlockId block : {scrub.source, scrub.target}) {
      if (Status s = in_range(Resource::block_index, block.value, 0, p.kv.num_blocks - 1); !s) {
        return s;
      }
    }
    if (Status s = in_range(Resource::num_tokens, scrub.kept_tokens, 0, p.kv.block_size); !s) {
      return s;
    }
  }
  return {};
}

/// Whether a plane consists of 16-byte units that belong to one token each.
bool has_wide_units(const PlaneView& plane, std::int64_t bytes,
                    std::int64_t layer_stride) noexcept {
  return is_aligned(plane.base, 16) &&
         (bytes | plane.block_stride | plane.token_stride | layer_stride) % 16 == 0;
}

}  // namespace

Status load_scrub() noexcept {
  return load_kernels(scrub_block_pieces<uint4>, scrub_block_pieces<std::uint8_t>);
}

Status launch_scrub(const ScrubParams& p, cudaStream_t stream) noexcept {
  if (Status s = check_scrub(p); !s) return s;
  const bool wide =
      has_wide_units(p.kv.key, p.key_bytes, p.layer_stride) &&
      (p.value_bytes == 0 || has_wide_units(p.kv.value, p.value_bytes, p.layer_stride));
  void (*const kernel)(ScrubBatch) =
      wide ? scrub_block_pieces<uint4> : scrub_block_pieces<std::uint8_t>;
  const std::int64_t bytes = std::max(p.key_bytes, p.value_bytes);
  const std::int64_t planes = std::int64_t{p.num_layers} * (p.value_bytes > 0 ? 2 : 1);
  ScrubBatch batch{.params = p, .count = 0, .scrubs = {}};
  for (std::int64_t first = 0; first < p.num_scrubs; first += batch.count) {
    batch.count =
        static_cast<std::int32_t>(std::min<std::int64_t>(kMaxScrubs, p.num_scrubs - first));
    std::copy_n(p.scrubs + first, batch.count, batch.scrubs);
    const cudaLaunchConfig_t config =
        piece_launch(bytes, batch.count, planes, wide ? 16 : 1, stream);
    if (Status s = launch_status(cudaLaunchKernelEx(&config, kernel, batch)); !s) return s;
  }
  return {};
}

}  // namespace kvarena::kernels
