#include "kernels/common/launch_checks.h"

#include "kvarena/base/latent_fp8.hpp"

#include <string_view>

namespace kvarena::kernels {
namespace {

constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxBlockSize = 65536;

/// The supported values of a list, for messages.
std::string_view text_of(SupportedList list) noexcept {
  switch (list) {
    case SupportedList::none: return "";
    case SupportedList::moved_dtypes:
      return "equal types; f32, f16 and bf16 to each other; fp8_e4m3 from and to those three; from "
             "those three to latent_fp8";
    case SupportedList::tile_orders: return "rows; chunked where block_size is a multiple of 16";
    case SupportedList::chunked_dtypes: return "f16, bf16, fp8_e4m3, int8 in chunked order";
    case SupportedList::chunked_head_dims: return "multiples of 32 bytes a token in chunked order";
    case SupportedList::prefill_dtypes: return "f32, f16, bf16";
    case SupportedList::prefill_kv_dtypes: return "f32, f16, bf16, fp8_e4m3, latent_fp8";
    case SupportedList::prefill_head_dims: return "1 to 1024";
    case SupportedList::decode_dtypes: return "f16, bf16";
    case SupportedList::decode_kv_dtypes: return "f16 and bf16 as q, fp8_e4m3 with either";
    case SupportedList::decode_head_dims: return "64, 96, 128, 256";
    case SupportedList::decode_block_sizes: return "multiples of 16";
    case SupportedList::columns_dtypes: return "f16 and bf16 as q, fp8_e4m3 with either";
    case SupportedList::columns_head_dims: return "64, 80 (not fp8_e4m3), 96, 128, 192, 256, 576";
    case SupportedList::latent_dtypes: return "bf16, fp8_e4m3, latent_fp8";
    case SupportedList::columns_devices: return "compute capability 9.0, as 90";
  }
  return "";
}

/// Checks that a stride is a multiple of an element.
Status element_stride(std::int64_t stride, DType dtype) noexcept {
  return in_range(Resource::alignment, stride % bytes_of(dtype), 0, 0);
}

/// Checks a plane in the format latent_fp8. Its scales are read as they lie.
Status check_latent(const PlaneView& plane) noexcept {
  constexpr std::int64_t kAlignment = 16;
  if (plane.tile_order != TileOrder::rows) {
    return unsupported_by(SupportedList::chunked_dtypes, plane.dtype);
  }
  const bool is_value = plane.head_dim == kLatentFp8ValueDim;
  if (Status s = in_range(Resource::head_dim, plane.head_dim,
                          is_value ? kLatentFp8ValueDim : kLatentFp8Dim, kLatentFp8Dim);
      !s) {
    return s;
  }
  if (Status s = aligned_pointer(plane.base, kAlignment); !s) return s;
  if (Status s =
          in_range(Resource::span_size, plane.token_stride, kLatentFp8Bytes, kLatentFp8Bytes);
      !s) {
    return s;
  }
  for (const std::int64_t stride : {plane.block_stride, plane.head_stride}) {
    if (Status s = in_range(Resource::alignment, stride % kAlignment, 0, 0); !s) return s;
  }
  return {};
}

/// Checks the scales of a plane that has one for each token and head.
Status check_own_scales(const PlaneView& plane) noexcept {
  if (plane.dtype != DType::fp8_e4m3) return unsupported(Resource::scale);
  constexpr std::int64_t kFloat = bytes_of(DType::f32);
  if (Status s = aligned_pointer(plane.base, kFloat); !s) return s;
  if (Status s = in_range(Resource::head_dim, plane.head_dim % kFloat, 0, 0); !s) return s;
  for (const std::int64_t stride :
       {plane.block_stride, plane.head_stride, plane.token_stride, plane.scales_offset}) {
    if (Status s = in_range(Resource::alignment, stride % kFloat, 0, 0); !s) return s;
  }
  return in_range(Resource::span_size, plane.scales_offset, 0, kMaxTokenStride);
}

}  // namespace

std::string describe_launch(const Status& status) {
  const std::string_view list = text_of(static_cast<SupportedList>(status.native));
  if (status.code != StatusCode::unsupported || list.empty()) return describe(status);
  const auto value = static_cast<std::int64_t>(status.subject);
  std::string text = "unsupported ";
  text += name_of(status.resource);
  text += ": got ";
  if (status.resource == Resource::dtype) {
    text += name_of(static_cast<DType>(value));
  } else if (status.resource == Resource::tile_order) {
    text += "chunked with block_size ";
    text += std::to_string(value);
  } else {
    text += std::to_string(value);
  }
  text += "; supported: ";
  text += list;
  return text;
}

Status check_plane(const PlaneView& plane, std::int32_t block_size) noexcept {
  if (Status s = check_enum(Resource::dtype, plane.dtype, DType::latent_fp8); !s) return s;
  if (Status s = check_enum(Resource::tile_order, plane.tile_order, TileOrder::chunked); !s) {
    return s;
  }
  if (Status s = in_range(Resource::num_kv_heads, plane.num_heads, 1, kMaxHeads); !s) return s;
  if (Status s = in_range(Resource::head_dim, plane.head_dim, 1, kMaxHeadDim); !s) return s;
  if (Status s = element_pointer(plane.base, plane.dtype); !s) return s;
  for (const std::int64_t stride : {plane.block_stride, plane.head_stride, plane.token_stride}) {
    if (Status s = element_stride(stride, plane.dtype); !s) return s;
  }
  if (plane.scales_offset != 0) {
    if (Status s = check_own_scales(plane); !s) return s;
  }
  if (!has_equal_elements(plane.dtype)) return check_latent(plane);
  if (plane.tile_order == TileOrder::rows) return {};
  if (block_size % kTileTokens != 0) {
    return unsupported_by(SupportedList::tile_orders, Resource::tile_order, block_size);
  }
  if (!has_chunked_order(plane.dtype)) {
    return unsupported_by(SupportedList::chunked_dtypes, plane.dtype);
  }
  if (!has_chunked_order(plane.dtype, plane.head_dim)) {
    return unsupported_by(SupportedList::chunked_head_dims, Resource::head_dim, plane.head_dim);
  }
  if (plane.token_stride == 0) return {};
  const std::int64_t row = plane.head_dim * bytes_of(plane.dtype);
  if (Status s = in_range(Resource::span_size, plane.token_stride, row, kMaxTokenStride); !s) {
    return s;
  }
  return in_range(Resource::alignment, plane.token_stride % kSmallPiece, 0, 0);
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
