#include "kernels/reference/kv_write.hpp"

#include "base/half.hpp"
#include "kvarena/base/tile_order.hpp"

namespace kvarena::kernels::reference {
namespace {

void append_plane(const AppendParams& p, const PlaneView& plane, PlaneKind kind, const void* from) {
  const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
  for (std::int64_t token = 0; token < p.num_tokens; ++token) {
    if (p.slots[token] < 0) continue;
    const std::int64_t block = p.slots[token] / p.kv.block_size;
    const auto offset = static_cast<std::int32_t>(p.slots[token] % p.kv.block_size);
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      const std::int64_t first = (token * plane.num_heads + head) * plane.head_dim;
      for (std::int32_t d = 0; d < plane.head_dim; ++d) {
        std::byte* to = plane.base + element_offset(plane, kind, bytes, block, head, offset, d);
        store_f32(to, plane.dtype, 0, load_f32(from, p.dtype, first + d));
      }
    }
  }
}

}  // namespace

void append(const AppendParams& params) {
  append_plane(params, params.kv.key, PlaneKind::key, params.key);
  if (params.value != nullptr) {
    append_plane(params, params.kv.value, PlaneKind::value, params.value);
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
