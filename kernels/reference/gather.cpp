#include "kernels/reference/gather.hpp"

#include "base/half.hpp"
#include "kvarena/base/tile_order.hpp"

namespace kvarena::kernels::reference {
namespace {

float load_element(const PlaneView& plane, PlaneKind kind, std::int64_t block, std::int32_t head,
                   std::int32_t token, std::int32_t dim) {
  const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
  return load_f32(plane.base + element_offset(plane, kind, bytes, block, head, token, dim),
                  plane.dtype, 0);
}

void gather_plane(const GatherParams& p, const PlaneView& plane, PlaneKind kind, void* to) {
  if (to == nullptr) return;
  std::int64_t index = 0;
  for (std::int64_t i = 0; i < p.num_tokens; ++i) {
    const std::int64_t at = p.first_token + i;
    const std::int64_t block = p.tables.block(p.row, at / p.kv.block_size).value;
    const auto token = static_cast<std::int32_t>(at % p.kv.block_size);
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      for (std::int32_t d = 0; d < plane.head_dim; ++d) {
        store_f32(to, p.dtype, index++, load_element(plane, kind, block, head, token, d));
      }
    }
  }
}

void convert_block(const PlaneView& from, const PlaneView& to, PlaneKind kind,
                   std::int32_t block_size, const BlockCopy& copy) {
  const auto bytes = static_cast<std::int32_t>(bytes_of(to.dtype));
  for (std::int32_t head = 0; head < to.num_heads; ++head) {
    for (std::int32_t token = 0; token < block_size; ++token) {
      for (std::int32_t d = 0; d < to.head_dim; ++d) {
        std::byte* at =
            to.base + element_offset(to, kind, bytes, copy.target.value, head, token, d);
        store_f32(at, to.dtype, 0, load_element(from, kind, copy.source.value, head, token, d));
      }
    }
  }
}

}  // namespace

void gather(const GatherParams& params) {
  gather_plane(params, params.kv.key, PlaneKind::key, params.key);
  gather_plane(params, params.kv.value, PlaneKind::value, params.value);
}

void convert_blocks(const ConvertBlocksParams& p) {
  for (std::int64_t i = 0; i < p.num_copies; ++i) {
    convert_block(p.from.key, p.to.key, PlaneKind::key, p.from.block_size, p.copies[i]);
    convert_block(p.from.value, p.to.value, PlaneKind::value, p.from.block_size, p.copies[i]);
  }
}

}  // namespace kvarena::kernels::reference
