#include "kvarena/base/layout.hpp"

#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "kvarena/base/latent_fp8.hpp"
#include "kvarena/base/tile_order.hpp"

#include <algorithm>
#include <limits>
#include <new>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxBlockSize = 65536;
constexpr std::size_t kPlaneKinds = 3;
constexpr std::int64_t kMaxPlanes = std::int64_t{kPlaneKinds} * kMaxLayers;
constexpr std::int64_t kMaxBlockBytes = std::int64_t{1} << 40;

/// Whether alias `a` can read the bytes of `b`: both have the same heads, type and scales, and `a`
/// needs no more dims.
bool same_shape(const PlaneSpec& a, const PlaneSpec& b) noexcept {
  return a.num_heads == b.num_heads && a.dtype == b.dtype && a.scale == b.scale &&
         a.head_dim <= b.head_dim;
}

/// Checks a plane in the format latent_fp8: K is a whole latent, and V is an alias of a part of it.
Status check_latent(const PlaneSpec& plane) noexcept {
  const bool is_alias = plane.alias_of != -1;
  if (is_alias != (plane.kind == PlaneKind::value)) {
    return unsupported_option(Option::alias_of, static_cast<std::uint64_t>(plane.alias_of));
  }
  const std::int64_t dim = is_alias ? kLatentFp8ValueDim : kLatentFp8Dim;
  if (Status s = check_option(Option::head_dim, plane.head_dim, dim, dim); !s) return s;
  return check_enum(Option::scale, plane.scale, ScaleKind::none);
}

/// Checks plane `i` on its own, and against the plane that it aliases.
Status check_plane(std::span<const PlaneSpec> planes, std::size_t i) noexcept {
  const PlaneSpec& plane = planes[i];
  if (Status s = check_option(Option::layer, plane.layer, 0, kMaxLayers - 1); !s) return s;
  if (Status s = check_enum(Option::kind, plane.kind, PlaneKind::index); !s) return s;
  if (Status s = check_enum(Option::dtype, plane.dtype, DType::latent_fp8); !s) return s;
  if (Status s = check_enum(Option::scale, plane.scale, ScaleKind::per_token_head); !s) return s;
  if (Status s = check_option(Option::num_heads, plane.num_heads, 1, kMaxHeads); !s) return s;
  if (Status s = check_option(Option::head_dim, plane.head_dim, 1, kMaxHeadDim); !s) return s;
  if (!has_equal_elements(plane.dtype)) {
    if (Status s = check_latent(plane); !s) return s;
  }
  if (plane.scale == ScaleKind::per_token_head &&
      row_bytes(plane.dtype, plane.head_dim) % bytes_of(DType::f32) != 0) {
    return unsupported_option(Option::head_dim, static_cast<std::uint64_t>(plane.head_dim));
  }
  if (plane.alias_of == -1) return {};
  const auto last = plane.kind == PlaneKind::index ? -1 : static_cast<std::int64_t>(i) - 1;
  if (Status s = check_option(Option::alias_of, plane.alias_of, 0, last); !s) return s;
  const PlaneSpec& target = planes[static_cast<std::size_t>(plane.alias_of)];
  if (target.alias_of != -1 || !same_shape(plane, target)) {
    return invalid_option(Option::alias_of, plane.alias_of, -1, last);
  }
  return {};
}

// Refuses a plane that has no chunked order. The bytes of an alias have the order of the plane that
// it reads, which is checked itself. An index has rows order.
Status check_chunked(const PlaneSpec& plane) noexcept {
  if (plane.alias_of != -1 || plane.kind == PlaneKind::index) return {};
  if (!has_chunked_order(plane.dtype)) {
    return unsupported_option(Option::dtype, static_cast<std::uint64_t>(plane.dtype));
  }
  if (!has_chunked_order(plane.dtype, plane.head_dim)) {
    return unsupported_option(Option::head_dim, static_cast<std::uint64_t>(plane.head_dim));
  }
  return {};
}

/// Checks a group and all of its planes.
Status check_group(const GroupSpec& group) noexcept {
  const auto num_planes = static_cast<std::int64_t>(group.planes.size());
  if (Status s = check_option(Option::planes, num_planes, 1, kMaxPlanes); !s) return s;
  if (Status s = check_option(Option::block_size_tokens, group.block_size_tokens, 1, kMaxBlockSize);
      !s) {
    return s;
  }
  if (Status s = check_enum(Option::tile_order, group.tile_order, TileOrder::chunked); !s) return s;
  if (Status s = check_enum(Option::retention, group.retention, Retention::fixed); !s) return s;
  if (group.tile_order == TileOrder::chunked && group.block_size_tokens % kTileTokens != 0) {
    return unsupported_option(Option::tile_order,
                              static_cast<std::uint64_t>(group.block_size_tokens));
  }
  if (group.retention != Retention::full) {
    return unsupported_option(Option::retention, static_cast<std::uint64_t>(group.retention));
  }
  for (std::size_t i = 0; i < group.planes.size(); ++i) {
    if (Status s = check_plane(group.planes, i); !s) return s;
    if (group.tile_order == TileOrder::rows) continue;
    if (Status s = check_chunked(group.planes[i]); !s) return s;
  }
  return {};
}

/// Bytes of one token in a plane, with its scales.
std::int64_t token_bytes(const PlaneSpec& plane) noexcept {
  const std::int64_t scale = plane.scale == ScaleKind::per_token_head ? bytes_of(DType::f32) : 0;
  return plane.num_heads * (row_bytes(plane.dtype, plane.head_dim) + scale);
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Result<KvLayout> KvLayout::create(const UniformLayoutOptions& options) try {
  if (Status s = check_each({
          {Option::num_layers, options.num_layers, 1, kMaxLayers},
          {Option::num_kv_heads, options.num_kv_heads, 1, kMaxHeads},
          {Option::head_dim_k, options.head_dim_k, 1, kMaxHeadDim},
          {Option::head_dim_v, options.head_dim_v, 0, kMaxHeadDim},
      });
      !s) {
    return s;
  }
  if (options.dtype == DType::latent_fp8) {  // V is not apart from K
    return unsupported_option(Option::dtype, static_cast<std::uint64_t>(options.dtype));
  }
  GroupSpec group;
  group.block_size_tokens = options.block_size_tokens;
  group.tile_order = options.tile_order.value_or(TileOrder::rows);
  group.planes.reserve(2 * static_cast<std::size_t>(options.num_layers));
  for (std::int32_t layer = 0; layer < options.num_layers; ++layer) {
    PlaneSpec plane{.layer = layer,
                    .kind = PlaneKind::key,
                    .num_heads = options.num_kv_heads,
                    .head_dim = options.head_dim_k,
                    .dtype = options.dtype};
    group.planes.push_back(plane);
    plane.kind = PlaneKind::value;
    if (options.head_dim_v != 0) plane.head_dim = options.head_dim_v;
    group.planes.push_back(plane);
  }
  return create(std::span<const GroupSpec>(&group, 1));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<KvLayout> KvLayout::create(std::span<const GroupSpec> groups) try {
  if (groups.size() != 1) {
    return groups.empty() ? invalid_argument(Resource::num_groups, 0, 1, 1)
                          : unsupported(Resource::num_groups, groups.size());
  }
  if (Status s = check_group(groups[0]); !s) return s;

  KvLayout layout;
  layout.group_ = groups[0];
  for (const PlaneSpec& plane : layout.planes()) {
    layout.num_layers_ = std::max(layout.num_layers_, plane.layer + 1);
  }
  layout.plane_of_.assign(kPlaneKinds * index(layout.num_layers_), -1);
  for (std::size_t i = 0; i < layout.group_.planes.size(); ++i) {
    const PlaneSpec& plane = layout.group_.planes[i];
    std::int32_t& slot =
        layout.plane_of_[kPlaneKinds * index(plane.layer) + static_cast<std::size_t>(plane.kind)];
    if (slot != -1) return invalid_option(Option::layer, plane.layer, 0, kMaxLayers - 1);
    slot = static_cast<std::int32_t>(i);
    if (plane.alias_of != -1) {
      layout.bytes_.push_back(0);
      layout.offset_.push_back(layout.offset_[index(plane.alias_of)]);
      continue;
    }
    const std::int64_t exact = token_bytes(plane) * layout.block_size();
    layout.bytes_per_token_ += token_bytes(plane);
    layout.bytes_.push_back(round_up(exact, kPlaneAlignment));
    layout.offset_.push_back(layout.block_bytes_);
    layout.block_bytes_ += layout.bytes_.back();
  }
  if (layout.block_bytes_ > kMaxBlockBytes) {
    return invalid_argument(Resource::block_bytes, layout.block_bytes_, 1, kMaxBlockBytes);
  }
  return layout;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

std::int32_t KvLayout::plane_of(std::int32_t layer, PlaneKind kind) const noexcept {
  if (layer < 0 || layer >= num_layers_ || kind > PlaneKind::index) return -1;
  return plane_of_[kPlaneKinds * index(layer) + static_cast<std::size_t>(kind)];
}

std::int64_t KvLayout::plane_offset(std::int32_t plane, BlockOrder order,
                                    std::int64_t num_blocks) const noexcept {
  const std::int64_t within_block = offset_[index(plane)];
  return order == BlockOrder::block_major ? within_block : within_block * num_blocks;
}

std::int64_t KvLayout::block_stride(std::int32_t plane, BlockOrder order) const noexcept {
  if (order == BlockOrder::block_major) return block_bytes_;
  const std::int32_t alias = group_.planes[index(plane)].alias_of;
  return bytes_[index(alias == -1 ? plane : alias)];
}

std::int64_t KvLayout::head_stride(std::int32_t plane) const noexcept {
  return token_stride(plane) * block_size();
}

std::int64_t KvLayout::token_stride(std::int32_t plane) const noexcept {
  // An alias reads the bytes of its target, so it uses the target's row length.
  const std::int32_t alias = group_.planes[index(plane)].alias_of;
  const PlaneSpec& spec = group_.planes[index(alias == -1 ? plane : alias)];
  return row_bytes(spec.dtype, spec.head_dim);
}

std::int64_t KvLayout::scales_offset(std::int32_t plane) const noexcept {
  const PlaneSpec& spec = group_.planes[index(plane)];
  if (spec.scale != ScaleKind::per_token_head) return 0;
  return spec.num_heads * head_stride(plane);
}

TileOrder KvLayout::tile_order_of(std::int32_t plane) const noexcept {
  const bool is_index = group_.planes[index(plane)].kind == PlaneKind::index;
  return is_index ? TileOrder::rows : group_.tile_order;
}

Result<std::int64_t> KvLayout::pool_bytes(std::int64_t block_bytes,
                                          std::int64_t num_blocks) noexcept {
  if (num_blocks < 1 || num_blocks > kMaxBlocks) {
    return invalid_argument(Resource::num_blocks, num_blocks, 1, kMaxBlocks);
  }
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / block_bytes;
  if (num_blocks > most) return invalid_argument(Resource::pool_bytes, num_blocks, 1, most);
  return num_blocks * block_bytes;
}

}  // namespace kvarena
