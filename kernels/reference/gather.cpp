#include "kernels/reference/gather.hpp"

#include "kernels/reference/element.hpp"
#include "kvarena/base/tile_order.hpp"

namespace kvarena::kernels::reference {
namespace {

/// Returns the address of an element of a pool.
std::byte* element_of(const PlaneView& plane, std::int64_t block, std::int32_t head,
                      std::int32_t token, std::int32_t dim) {
  const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
  return plane.base + element_offset(plane, bytes, block, head, token, dim);
}

/// Calls visit(pool element, index in contiguous memory, head) for every element of the span.
template <class Params, class Visit>
void for_each_element(const Params& p, const PlaneView& plane, Visit&& visit) {
  std::int64_t index = 0;
  for (std::int64_t i = 0; i < p.num_tokens; ++i) {
    const std::int64_t at = p.first_token + i;
    const std::int64_t block = p.tables.block(p.row, at / p.kv.block_size).value;
    const auto token = static_cast<std::int32_t>(at % p.kv.block_size);
    if (block < 0 || block >= p.kv.num_blocks) {
      index += std::int64_t{plane.num_heads} * plane.head_dim;
      continue;
    }
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      for (std::int32_t d = 0; d < plane.head_dim; ++d) {
        visit(element_of(plane, block, head, token, d), index++, head);
      }
    }
  }
}

/// Reads one plane.
void gather_plane(const GatherParams& p, const PlaneView& plane, void* to, const float* scales) {
  if (to == nullptr) return;
  for_each_element(p, plane, [&](const std::byte* from, std::int64_t i, std::int32_t head) {
    move_element(from, plane.dtype, static_cast<std::byte*>(to) + i * bytes_of(p.dtype), p.dtype,
                 scale_of(scales, p.scales.per_head, head));
  });
}

/// Writes one plane.
void scatter_plane(const ScatterParams& p, const PlaneView& plane, const void* from,
                   const float* scales) {
  if (from == nullptr) return;
  for_each_element(p, plane, [&](std::byte* to, std::int64_t i, std::int32_t head) {
    move_element(static_cast<const std::byte*>(from) + i * bytes_of(p.dtype), p.dtype, to,
                 plane.dtype, scale_of(scales, p.scales.per_head, head));
  });
}

/// Converts one block of one plane.
void convert_block(const ConvertBlocksParams& p, const PlaneView& from, const PlaneView& to,
                   const BlockCopy& copy, const float* scales) {
  for (std::int32_t head = 0; head < to.num_heads; ++head) {
    const float scale = scale_of(scales, p.scales.per_head, head);
    for (std::int32_t token = 0; token < p.from.block_size; ++token) {
      for (std::int32_t d = 0; d < to.head_dim; ++d) {
        move_element(element_of(from, copy.source.value, head, token, d), from.dtype,
                     element_of(to, copy.target.value, head, token, d), to.dtype, scale);
      }
    }
  }
}

}  // namespace

void gather(const GatherParams& params) {
  gather_plane(params, params.kv.key, params.key, params.scales.key);
  gather_plane(params, params.kv.value, params.value, params.scales.value);
}

void scatter(const ScatterParams& params) {
  scatter_plane(params, params.kv.key, params.key, params.scales.key);
  scatter_plane(params, params.kv.value, params.value, params.scales.value);
}

void convert_blocks(const ConvertBlocksParams& p) {
  for (std::int64_t i = 0; i < p.num_copies; ++i) {
    const std::int64_t source = p.copies[i].source.value;
    const std::int64_t target = p.copies[i].target.value;
    if (source < 0 || source >= p.from.num_blocks) continue;
    if (target < 0 || target >= p.to.num_blocks) continue;
    convert_block(p, p.from.key, p.to.key, p.copies[i], p.scales.key);
    convert_block(p, p.from.value, p.to.value, p.copies[i], p.scales.value);
  }
}

}  // namespace kvarena::kernels::reference
