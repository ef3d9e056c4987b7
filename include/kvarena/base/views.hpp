#pragma once

/// @file
/// Plain views: the structs that the block tables and the attention share. A view owns nothing, is
/// trivially copyable, and is valid until the viewed object changes. Shapes are in brackets, in C
/// order.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvarena {

/// K, V or the index of one layer of a pool, with the strides of its elements. In rows order,
/// element (block, head, token, dim) lies at `base + block * block_stride + head * head_stride +
/// token * token_stride + dim * bytes_of(dtype)`, all in bytes. `element_offset` of tile_order.hpp
/// computes the place in either order.
struct PlaneView {
  std::byte* base = nullptr;               ///< block 0 of this plane
  std::int64_t block_stride = 0;           ///< bytes
  std::int64_t head_stride = 0;            ///< bytes
  std::int64_t token_stride = 0;           ///< bytes; chunked order: of a token, 0: head_dim's
  std::int32_t num_heads = 0;              ///< KV heads
  std::int32_t head_dim = 0;               ///< elements
  DType dtype = DType::f16;                ///< element type
  TileOrder tile_order = TileOrder::rows;  ///< order inside a head's tile
  /// The f32 scale of (block, head, token) lies at `base + block * block_stride + scales_offset +
  /// (head * block_size + token) * 4`; an element's value is element * scale. 0: no such scales.
  std::int64_t scales_offset = 0;
};

/// K and V of one layer of a pool.
struct KvLayerView {
  PlaneView key;                ///< K
  PlaneView value;              ///< V; may alias K
  std::int32_t block_size = 0;  ///< tokens a block
  std::int64_t num_blocks = 0;  ///< blocks in the pool
};

/// The keys of a sparse-attention index of one layer of a pool: one head in rows order.
struct IndexView {
  PlaneView index;              ///< the keys
  std::int32_t block_size = 0;  ///< tokens a block
  std::int64_t num_blocks = 0;  ///< blocks in the pool
};

/// Returns an index as a layer's K, with V in K, for append_kv's arguments.
constexpr KvLayerView layer_of(const IndexView& view) noexcept {
  return {view.index, view.index, view.block_size, view.num_blocks};
}

/// Bytes from a plane's `base` to the scale of (block, head, token); with scales_offset set.
KVARENA_HOST_DEVICE constexpr std::int64_t scale_byte(const PlaneView& plane,
                                                      std::int32_t block_size, std::int64_t block,
                                                      std::int32_t head,
                                                      std::int32_t token) noexcept {
  return block * plane.block_stride + plane.scales_offset +
         (std::int64_t{head} * block_size + token) * 4;
}

/// The block tables of a batch. Block `j` of row `r` is
/// - with contiguous rows (`pages == nullptr`): `entries[row_offsets[r] + j]`;
/// - with paged rows: `entries[(pages[row_offsets[r] + (j >> page_shift)] << page_shift) + (j &
///   mask)]` with `mask = (1 << page_shift) - 1`.
struct BlockTableView {
  const BlockId* entries = nullptr;           ///< block ids
  const std::int32_t* pages = nullptr;        ///< page numbers, or nullptr for contiguous rows
  const std::int64_t* row_offsets = nullptr;  ///< [num_rows]
  std::int32_t page_shift = 0;                ///< log2 of the entries in a page
  std::int32_t num_rows = 0;                  ///< sequences in the batch

  /// Returns block `j` of row `r`. `j` must be below the row's number of blocks.
  KVARENA_HOST_DEVICE BlockId block(std::int32_t row, std::int64_t j) const noexcept {
    const std::int64_t first = row_offsets[row];
    if (pages == nullptr) return entries[first + j];
    const std::int64_t page = pages[first + (j >> page_shift)];
    return entries[(page << page_shift) + (j & ((std::int64_t{1} << page_shift) - 1))];
  }
};

/// A batch of sequences: tables, lengths and numbers of blocks.
struct BatchView {
  BlockTableView tables;                     ///< block ids by row
  const std::int32_t* seq_lens = nullptr;    ///< [num_rows] tokens in each sequence
  const std::int32_t* num_blocks = nullptr;  ///< [num_rows] blocks that hold them; CUDA: not read
  std::int32_t num_rows = 0;                 ///< sequences
};

/// Scales of quantised planes. The value of a stored element is element * scale.
struct QuantScales {
  const float* key = nullptr;    ///< [num_kv_heads], or one for all heads; null: every scale is 1
  const float* value = nullptr;  ///< as key
  bool per_head = false;         ///< true: one scale for each head
};

/// A block to copy within a pool, in all planes: `target` becomes equal to `source`.
struct BlockCopy {
  BlockId source;  ///< unchanged
  BlockId target;  ///< overwritten
};

static_assert(std::is_trivially_copyable_v<KvLayerView> &&
              std::is_trivially_copyable_v<IndexView> && std::is_trivially_copyable_v<BatchView>);

}  // namespace kvarena
