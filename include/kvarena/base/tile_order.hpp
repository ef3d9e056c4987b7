#pragma once

/// @file
/// The place of element (token, dim) in one head's tile. The CPU reference, the append and
/// conversion kernels and attention all use these functions. They are pure constexpr functions for
/// host and device code. They check no argument: `KvLayout::create` has refused what does not fit.
///
/// `rows` is plain [block_size, head_dim]. `chunked` cuts a block into tiles of 16 tokens, one
/// after another, and a tile into chunks of 16 bytes of one token. In this order the 16-byte loads
/// of a warp are 512 contiguous bytes, and the loaded registers are operands of `mma.m16n8k16`. For
/// K, thread `4 * (token % 8) + (chunk % 4)` gets the rows of its token. For V, thread `8 * (token
/// % 8 / 2) + (chunk % 8)` gets, with four loads, two neighbouring tokens and the two tokens that
/// lie eight further on.
///
/// A chunk of 16-bit elements has eight dims, and head_dim is a multiple of 32. A chunk of one-byte
/// elements has sixteen dims; they are widened to 16 bits before they are multiplied. Elements of
/// other widths have no chunked order.

#include "kvarena/base/export.hpp"
#include "kvarena/base/views.hpp"

#include <cstdint>

namespace kvarena {

inline constexpr std::int32_t kTileTokens = 16;      ///< tokens of one chunked tile
inline constexpr std::int32_t kChunkBytes = 16;      ///< contiguous bytes of one token
inline constexpr std::int32_t kChunkedDimStep = 32;  ///< chunked: head_dim is a multiple of this

/// Returns whether elements of `dtype` have a chunked order.
constexpr bool has_chunked_order(DType dtype) noexcept { return bytes_of(dtype) <= 2; }

/// Element offset of a 16-bit K within its tile. 32 dims of 8 tokens are 256 contiguous elements.
KVARENA_HOST_DEVICE constexpr std::int32_t chunked_key_offset(std::int32_t token,
                                                              std::int32_t dim) noexcept {
  const std::int32_t load = (dim >> 5) * 2 + (token >> 3);
  const std::int32_t lane = (token & 7) * 4 + ((dim >> 3) & 3);
  return load * 256 + lane * 8 + (dim & 7);
}

/// Element offset of a 16-bit V within its tile. A load is 256 contiguous elements: 64 dims of
/// every second token of half a tile. A last group of 32 dims (head_dim 96) is packed in loads of
/// half that size.
KVARENA_HOST_DEVICE constexpr std::int32_t chunked_value_offset(std::int32_t token,
                                                                std::int32_t dim,
                                                                std::int32_t head_dim) noexcept {
  const std::int32_t group = dim >> 6;
  const std::int32_t load = (token & 1) + ((token >> 3) * 2);
  const std::int32_t pair = (token & 7) >> 1;
  if (group * 64 + 64 <= head_dim) {
    return (group * 4 + load) * 256 + (pair * 8 + ((dim >> 3) & 7)) * 8 + (dim & 7);
  }
  return group * 1024 + load * 128 + (pair * 4 + ((dim >> 3) & 3)) * 8 + (dim & 7);
}

/// Element offset of a one-byte K within its tile. 64 dims of 8 tokens are 512 contiguous bytes. A
/// last group of 32 dims is packed in loads of half that size.
KVARENA_HOST_DEVICE constexpr std::int32_t chunked_byte_key_offset(std::int32_t token,
                                                                   std::int32_t dim,
                                                                   std::int32_t head_dim) noexcept {
  const std::int32_t group = dim >> 6;
  const std::int32_t half = token >> 3;
  const bool whole = group * 64 + 64 <= head_dim;
  const std::int32_t chunks = whole ? 4 : 2;
  const std::int32_t lane = (token & 7) * chunks + ((dim >> 4) & (chunks - 1));
  return group * 1024 + half * chunks * 128 + lane * 16 + (dim & 15);
}

/// Element offset of a one-byte V within its tile. A load is 512 contiguous bytes: 128 dims of
/// every second token of half a tile. Last groups of 64 and 32 dims are packed in loads of 64 and
/// 32 dims.
KVARENA_HOST_DEVICE constexpr std::int32_t chunked_byte_value_offset(
    std::int32_t token, std::int32_t dim, std::int32_t head_dim) noexcept {
  const std::int32_t wide = dim & ~127;  // first dim of this group of up to 128
  const std::int32_t left = head_dim - wide;
  const bool in_tail = left < 128 && (left < 64 || dim - wide >= 64);
  const std::int32_t dims = left >= 128 ? 128 : in_tail ? 32 : 64;
  const std::int32_t first = wide + (in_tail && left >= 64 ? 64 : 0);
  const std::int32_t load = (token & 1) + ((token >> 3) * 2);
  const std::int32_t pair = (token & 7) >> 1;
  return first * kTileTokens + (load * 4 + pair) * dims + (dim - first);
}

/// Element offset of (token, dim) in chunked order, from the start of one head's part of a block.
/// `token` is 0 .. block_size - 1.
KVARENA_HOST_DEVICE constexpr std::int32_t chunked_offset(PlaneKind kind,
                                                          std::int32_t element_bytes,
                                                          std::int32_t head_dim, std::int32_t token,
                                                          std::int32_t dim) noexcept {
  const std::int32_t tile = (token / kTileTokens) * kTileTokens * head_dim;
  const std::int32_t in_tile = token % kTileTokens;
  if (element_bytes == 1) {
    return tile + (kind == PlaneKind::key ? chunked_byte_key_offset(in_tile, dim, head_dim)
                                          : chunked_byte_value_offset(in_tile, dim, head_dim));
  }
  if (kind == PlaneKind::key) return tile + chunked_key_offset(in_tile, dim);
  return tile + chunked_value_offset(in_tile, dim, head_dim);
}

/// Bytes from block 0 of `plane` to element (block, head, token, dim), in either tile order. `kind`
/// says whether the plane is K or V.
KVARENA_HOST_DEVICE constexpr std::int64_t element_offset(const PlaneView& plane, PlaneKind kind,
                                                          std::int32_t element_bytes,
                                                          std::int64_t block, std::int32_t head,
                                                          std::int32_t token,
                                                          std::int32_t dim) noexcept {
  const std::int64_t tile = block * plane.block_stride + head * plane.head_stride;
  if (plane.tile_order == TileOrder::rows) {
    return tile + token * plane.token_stride + std::int64_t{dim} * element_bytes;
  }
  return tile + std::int64_t{chunked_offset(kind, element_bytes, plane.head_dim, token, dim)} *
                    element_bytes;
}

static_assert(chunked_key_offset(15, 127) == 2047 && chunked_value_offset(15, 127, 128) == 2047);
static_assert(chunked_value_offset(15, 95, 96) == 1535 &&
              chunked_byte_key_offset(15, 95, 96) == 1535);
static_assert(chunked_byte_value_offset(15, 95, 96) == 1535 &&
              chunked_byte_value_offset(15, 127, 128) == 2047);

}  // namespace kvarena
