#include "kernels/reference/kv_write.hpp"

#include "kernels/reference/element.hpp"
#include "kvarena/base/tile_order.hpp"

#include <array>
#include <cstring>
#include <vector>

namespace kvarena::kernels::reference {
namespace {

/// Converts one head of a token to a row in the format latent_fp8.
void append_latent(const std::byte* from, DType dtype, std::byte* to) {
  std::array<float, kLatentFp8Dim> values{};
  for (std::size_t dim = 0; dim < values.size(); ++dim) {
    values[dim] = load_element(from, dtype, static_cast<std::int64_t>(dim));
  }
  store_latent_fp8(values, to);
}

/// Converts one head of a token to fp8 e4m3 with a scale of its own.
void append_scaled(const std::byte* from, DType dtype, const PlaneView& plane,
                   std::int32_t block_size, std::int64_t block, std::int32_t head,
                   std::int32_t offset) {
  std::vector<float> values(static_cast<std::size_t>(plane.head_dim));
  for (std::size_t dim = 0; dim < values.size(); ++dim) {
    values[dim] = load_element(from, dtype, static_cast<std::int64_t>(dim));
  }
  const float scale = fp8_scale_of(values);
  store_f32(plane.base + scale_byte(plane, block_size, block, head, offset), DType::f32, 0, scale);
  for (std::int32_t d = 0; d < plane.head_dim; ++d) {
    std::byte* const to = plane.base + element_offset(plane, 1, block, head, offset, d);
    store_element(to, DType::fp8_e4m3, 0, values[static_cast<std::size_t>(d)] / scale);
  }
}

/// Writes K or V of all tokens.
void append_plane(const AppendParams& p, const PlaneView& plane, const void* from,
                  std::int64_t given_stride, const float* scales) {
  const std::int64_t stride = token_stride(given_stride, plane.num_heads, plane.head_dim, p.dtype);
  const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
  for (std::int64_t token = 0; token < p.num_tokens; ++token) {
    const std::int64_t block = p.slots[token] / p.kv.block_size;
    if (p.slots[token] < 0 || block >= p.kv.num_blocks) continue;
    const auto offset = static_cast<std::int32_t>(p.slots[token] % p.kv.block_size);
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      const auto* at = static_cast<const std::byte*>(from) + token * stride;
      const std::int64_t first = std::int64_t{head} * plane.head_dim;
      const float scale = scale_of(scales, p.scales.per_head, head);
      if (plane.dtype == DType::latent_fp8) {
        append_latent(at + first * bytes_of(p.dtype), p.dtype,
                      plane.base + element_offset(plane, 1, block, head, offset, 0));
        continue;
      }
      if (plane.scales_offset != 0) {
        append_scaled(at + first * bytes_of(p.dtype), p.dtype, plane, p.kv.block_size, block, head,
                      offset);
        continue;
      }
      for (std::int32_t d = 0; d < plane.head_dim; ++d) {
        std::byte* to = plane.base + element_offset(plane, bytes, block, head, offset, d);
        move_element(at + (first + d) * bytes_of(p.dtype), p.dtype, to, plane.dtype, scale);
      }
    }
  }
}

/// Copies the first tokens of a head and zeros the tokens behind them.
void scrub_head(const PlaneView& plane, std::int32_t block_size, std::int32_t kept_tokens,
                const std::byte* from, std::byte* to) {
  const auto token_bytes = static_cast<std::size_t>(plane.token_stride);
  const auto kept = static_cast<std::size_t>(kept_tokens);
  if (plane.tile_order == TileOrder::rows) {
    if (from != to) std::memcpy(to, from, kept * token_bytes);
    std::memset(to + kept * token_bytes, 0,
                (static_cast<std::size_t>(block_size) - kept) * token_bytes);
    return;
  }
  const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
  for (std::int32_t token = 0; token < block_size; ++token) {
    for (std::int32_t dim = 0; dim < plane.head_dim; ++dim) {
      const std::int64_t at = element_offset(plane, bytes, 0, 0, token, dim);
      for (std::int64_t byte = at; byte < at + bytes; ++byte) {
        to[byte] = token < kept_tokens ? from[byte] : std::byte{0};
      }
    }
  }
}

/// Scrubs one block of one plane.
void scrub_plane(const PlaneView& plane, std::int64_t plane_bytes, std::int32_t block_size,
                 std::int64_t layer_bytes, const BlockScrub& scrub) {
  const std::byte* from = plane.base + layer_bytes + scrub.source.value * plane.block_stride;
  std::byte* to = plane.base + layer_bytes + scrub.target.value * plane.block_stride;
  if (scrub.kept_tokens == 0) {
    std::memset(to, 0, static_cast<std::size_t>(plane_bytes));
    return;
  }
  for (std::int32_t head = 0; head < plane.num_heads; ++head) {
    scrub_head(plane, block_size, scrub.kept_tokens, from + head * plane.head_stride,
               to + head * plane.head_stride);
  }
  const std::int64_t heads_bytes = plane.num_heads * plane.head_stride;
  std::memset(to + heads_bytes, 0, static_cast<std::size_t>(plane_bytes - heads_bytes));
}

}  // namespace

void append(const AppendParams& params) {
  append_plane(params, params.kv.key, params.key, params.key_token_stride, params.scales.key);
  if (params.value != nullptr) {
    append_plane(params, params.kv.value, params.value, params.value_token_stride,
                 params.scales.value);
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

void scrub(const ScrubParams& p) {
  for (std::int64_t i = 0; i < p.num_scrubs; ++i) {
    for (std::int32_t layer = 0; layer < p.num_layers; ++layer) {
      const std::int64_t layer_bytes = layer * p.layer_stride;
      scrub_plane(p.kv.key, p.key_bytes, p.kv.block_size, layer_bytes, p.scrubs[i]);
      if (p.value_bytes == 0) continue;
      scrub_plane(p.kv.value, p.value_bytes, p.kv.block_size, layer_bytes, p.scrubs[i]);
    }
  }
}

}  // namespace kvarena::kernels::reference
