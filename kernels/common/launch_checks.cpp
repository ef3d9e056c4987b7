#include "kernels/common/launch_checks.h"

namespace kvarena::kernels {
namespace {

constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxBlockSize = 65536;

Status element_stride(std::int64_t stride, DType dtype) noexcept {
  if (stride % bytes_of(dtype) == 0) return {};
  return invalid_argument(Resource::alignment, stride % bytes_of(dtype), 0, 0);
}

}  // namespace

Status check_plane(const PlaneView& plane, std::int32_t block_size) noexcept {
  if (bytes_of(plane.dtype) == 0) {
    return unsupported(Resource::dtype, static_cast<std::uint64_t>(plane.dtype));
  }
  if (Status s = in_range(Resource::num_kv_heads, plane.num_heads, 1, kMaxHeads); !s) return s;
  if (Status s = in_range(Resource::head_dim, plane.head_dim, 1, kMaxHeadDim); !s) return s;
  if (Status s = element_pointer(plane.base, plane.dtype); !s) return s;
  for (const std::int64_t stride : {plane.block_stride, plane.head_stride, plane.token_stride}) {
    if (Status s = element_stride(stride, plane.dtype); !s) return s;
  }
  if (plane.tile_order == TileOrder::rows) return {};
  if (plane.tile_order != TileOrder::chunked || block_size % kTileTokens != 0) {
    return unsupported(Resource::tile_order, static_cast<std::uint64_t>(block_size));
  }
  if (!has_chunked_order(plane.dtype)) {
    return unsupported(Resource::dtype, static_cast<std::uint64_t>(plane.dtype));
  }
  if (plane.head_dim % kChunkedDimStep != 0) {
    return unsupported(Resource::head_dim, static_cast<std::uint64_t>(plane.head_dim));
  }
  return {};
}

Status check_layer(const KvLayerView& kv) noexcept {
  if (Status s = in_range(Resource::block_size, kv.block_size, 1, kMaxBlockSize); !s) return s;
  if (Status s = in_range(Resource::num_blocks, kv.num_blocks, 1, KvLayout::kMaxBlocks); !s) {
    return s;
  }
  if (Status s = check_plane(kv.key, kv.block_size); !s) return s;
  if (Status s = check_plane(kv.value, kv.block_size); !s) return s;
  return in_range(Resource::num_kv_heads, kv.value.num_heads, kv.key.num_heads, kv.key.num_heads);
}

Status check_tables(const BlockTableView& tables) noexcept {
  if (Status s = not_null(tables.entries); !s) return s;
  if (Status s = not_null(tables.row_offsets); !s) return s;
  if (Status s = in_range(Resource::num_sequences, tables.num_rows, 1, 1LL << 30); !s) return s;
  return in_range(Resource::table_page, tables.page_shift, 0, 30);
}

}  // namespace kvarena::kernels
