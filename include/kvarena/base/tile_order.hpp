#pragma once

/// @file
/// The place of element (token, dim) in one head's tile. The CPU reference, the append and
/// conversion kernels and attention all use these functions. They are pure constexpr functions for
/// host and device code. They check no argument: `KvLayout::create` has refused what does not fit.
///
/// `rows` is plain [block_size, head_dim]. `chunked` cuts the tokens of a block into groups of
/// eight, one after another, and the bytes of a token into pieces of 64 bytes. An atom is the same
/// piece of the eight tokens of a group, token after token: 512 bytes. The atoms of a group follow
/// each other. Within its piece, a token's four chunks of 16 bytes are exchanged by an exclusive or
/// with token / 2 % 4. Where the bytes of a token are no multiple of 64, a piece has 32 bytes and
/// an atom 256; then the two chunks are exchanged by token / 4 % 2.
///
/// The order is the same for K and V and for each type. A run of 16-token tiles, copied to shared
/// memory as it lies, is an operand of Hopper's `wgmma`: for K with the layout that CUTLASS calls
/// `Layout_K_SW64_Atom`, for V with `Layout_MN_SW64_Atom` (mma_sm90_desc.hpp; `SW32` for pieces of
/// 32 bytes). A warp that loads 16 bytes a lane reads 512 contiguous bytes of K, or two runs of 256
/// bytes of V.

#include "kvarena/base/export.hpp"
#include "kvarena/base/views.hpp"

#include <cstdint>

namespace kvarena {

inline constexpr std::int32_t kTileTokens = 16;  ///< chunked: block sizes are multiples of this
inline constexpr std::int32_t kChunkBytes = 16;  ///< contiguous bytes of one token
inline constexpr std::int32_t kAtomTokens = 8;   ///< tokens of an atom
inline constexpr std::int32_t kPieceBytes = 64;  ///< bytes of a token in an atom
inline constexpr std::int32_t kSmallPiece = 32;  ///< where a token's bytes are no multiple of 64

/// Returns whether elements of `dtype` have a chunked order.
constexpr bool has_chunked_order(DType dtype) noexcept {
  return bytes_of(dtype) <= 2 && has_equal_elements(dtype);
}
/// Returns whether heads of `head_dim` elements of `dtype` have one.
constexpr bool has_chunked_order(DType dtype, std::int32_t head_dim) noexcept {
  return has_chunked_order(dtype) && head_dim * bytes_of(dtype) % kSmallPiece == 0;
}

/// Returns the place of byte `byte` of a token in chunked order, in bytes from the start of one
/// head's part of a block. `token` is 0 .. block_size - 1; a token has `row_bytes` bytes.
KVARENA_HOST_DEVICE constexpr std::int32_t chunked_bytes(std::int32_t row_bytes, std::int32_t token,
                                                         std::int32_t byte) noexcept {
  const bool is_small = row_bytes % kPieceBytes != 0;
  const std::int32_t shift = is_small ? 5 : 6;  // log2 of the bytes of a piece
  const std::int32_t chunks = is_small ? 2 : 4;
  const std::int32_t exchange = is_small ? token >> 2 : token >> 1;
  const std::int32_t chunk = ((byte >> 4) ^ exchange) & (chunks - 1);
  return (token >> 3) * kAtomTokens * row_bytes + ((byte >> shift) << (shift + 3)) +
         ((token & 7) << shift) + (chunk << 4) + (byte & 15);
}

/// Returns the bytes of a token of a plane in chunked order. V that is the leading elements of K
/// has the tokens of K.
KVARENA_HOST_DEVICE constexpr std::int32_t chunked_row_bytes(const PlaneView& plane,
                                                             std::int32_t element_bytes) noexcept {
  return plane.token_stride > 0 ? static_cast<std::int32_t>(plane.token_stride)
                                : plane.head_dim * element_bytes;
}

/// Returns the bytes from block 0 of `plane` to element (block, head, token, dim), in either tile
/// order.
KVARENA_HOST_DEVICE constexpr std::int64_t element_offset(const PlaneView& plane,
                                                          std::int32_t element_bytes,
                                                          std::int64_t block, std::int32_t head,
                                                          std::int32_t token,
                                                          std::int32_t dim) noexcept {
  const std::int64_t tile = block * plane.block_stride + head * plane.head_stride;
  if (plane.tile_order == TileOrder::rows) {
    return tile + token * plane.token_stride + std::int64_t{dim} * element_bytes;
  }
  return tile + chunked_bytes(chunked_row_bytes(plane, element_bytes), token, dim * element_bytes);
}

}  // namespace kvarena
