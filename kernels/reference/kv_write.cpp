#include "kernels/reference/kv_write.hpp"

#include "kernels/reference/element.hpp"
#include "kvarena/base/tile_order.hpp"

namespace kvarena::kernels::reference {
namespace {

void append_plane(const AppendParams& p, const PlaneView& plane, PlaneKind kind, const void* from,
                  const float* scales) {
  const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
  for (std::int64_t token = 0; token < p.num_tokens; ++token) {
    const std::int64_t block = p.slots[token] / p.kv.block_size;
    if (p.slots[token] < 0 || block >= p.kv.num_blocks) continue;
    const auto offset = static_cast<std::int32_t>(p.slots[token] % p.kv.block_size);
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      const std::int64_t first = (token * plane.num_heads + head) * plane.head_dim;
      const float scale = scale_of(scales, p.scales.per_head, head);
      for (std::int32_t d = 0; d < plane.head_dim; ++d) {
        std::byte* to = plane.base + element_offset(plane, kind, bytes, block, head, offset, d);
        move_element(static_cast<const std::byte*>(from) + (first + d) * bytes_of(p.dtype), p.dtype,
                     to, plane.dtype, scale);
      }
    }
  }
}

}  // namespace

void append(const AppendParams& params) {
  append_plane(params, params.kv.key, PlaneKind::key, params.key, params.scales.key);
  if (params.value != nullptr) {
    append_plane(params, params.kv.value, PlaneKind::value, params.value, params.scales.value);
  }
}

void copy_blocks(const CopyBlocksParams& p) {
  for (std::int64_t plane = 0; plane < p.num_planes; ++plane) {
    std::byte* base = p.base + plane * p.plane_stride;
    for (std::int64_t i = 0; i < p.num_copies; ++i) {
      if (p.copies[i].source.value < 0) continue;
      const std::byte* source = base + p.copies[i].source.value * p.block_stride;
      std::byte* target = base + p.copies[i].target.value * p.block_stride;
      for (std::int64_t byte = 0; byte < p.bytes; ++byte) target[byte] = source[byte];
    }
  }
}

}  // namespace kvarena::kernels::reference
