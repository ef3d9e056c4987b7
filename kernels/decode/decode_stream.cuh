#pragma once

/// @file
/// The decode kernel's inner loop: one warp's tiles of one part. Included by decode.cuh.

namespace kvarena::kernels::decode {

/// Loads this warp's first tile, and the block of its second.
template <class T, int D, int W, bool OneTile>
__device__ __forceinline__ void Kernel<T, D, W, OneTile>::load_first(TileRegisters<D>& tile,
                                                                     const WorkItem& item,
                                                                     int& next_block) const {
  const int index = item.part.first_tile + warp;
  if (index >= item.part.last_tile) return;
  const BlockId* blocks = table(item);
  const std::int64_t offset = tile_offset(block_of(blocks, index), item.head, index);
  next_block = index + W < item.part.last_tile ? block_of(blocks, index + W) : 0;
  tile.load_key(static_cast<const char*>(p.key) + offset, lane);
  tile.load_value(static_cast<const char*>(p.value) + offset, g, t);
}

/// B operands of the 8 query columns: column g, the dims that `load_key` gave lane t.
template <class T, int D, int W, bool OneTile>
__device__ __forceinline__ void Kernel<T, D, W, OneTile>::load_query(unsigned (&q)[D / 16][2],
                                                                     const WorkItem& item) const {
  const int column = item.chunk * kColumns + g;
  const bool exists = column < num_columns();
  const char* row = static_cast<const char*>(p.q) + q_row(item, exists ? column : 0) * (D * 2);
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    const char* at = row + ((i >> 1) * 32 + t * 8 + (i & 1) * 4) * 2;
    const uint2 v = exists ? *reinterpret_cast<const uint2*>(at) : make_uint2(0, 0);
    q[i][0] = v.x;
    q[i][1] = v.y;
  }
}

/// Takes away the logits of tokens that a column does not see.
template <class T, int D, int W, bool OneTile>
__device__ __forceinline__ void Kernel<T, D, W, OneTile>::mask(float (&s)[4], const WorkItem& item,
                                                               int tile) const {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = tile * kTileTokens + g + (i >> 1) * 8;
    const int limit = limit_of(item, item.chunk * kColumns + 2 * t + (i & 1));
    const int start = p.window_tokens == 0 ? 0 : limit - p.window_tokens;
    if (token < start || token >= limit) s[i] = -INFINITY;
  }
}

/// Online softmax (Milakov and Gimelshein, 2018) over this warp's tiles, every W-th of the part.
/// The next tile's K is asked for as soon as this one's is used, and so is V.
template <class T, int D, int W, bool OneTile>
__device__ __forceinline__ void Kernel<T, D, W, OneTile>::stream(Accumulator<D>& acc,
                                                                 TileRegisters<D>& tile,
                                                                 int next_block,
                                                                 const WorkItem& item) const {
  constexpr int kSteps = D / 16;
  unsigned q[kSteps][2];
  load_query(q, item);
  // Every column sees every token of the tiles [first_whole, end_whole).
  const int end_whole = limit_of(item, 0) / kTileTokens;
  const int first_whole =
      p.window_tokens == 0
          ? 0
          : (max(0, item.part.seq_len - p.window_tokens) + kTileTokens - 1) / kTileTokens;
  const float to_log2 = p.scale * kLog2e;
  const float cap = p.soft_cap;
  const BlockId* blocks = table(item);

  for (int index = item.part.first_tile + warp; index < item.part.last_tile; index += W) {
    const bool more = index + W < item.part.last_tile;
    const int after_next =
        index + 2 * W < item.part.last_tile ? block_of(blocks, index + 2 * W) : 0;
    const std::int64_t next = more ? tile_offset(next_block, item.head, index + W) : 0;
    float s[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    float s2[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      const uint4& low = tile.k[i];
      const uint4& high = tile.k[i + 1];
      Element<T>::mma(s, low.x, high.x, low.y, high.y, q[i][0], q[i][1]);
      Element<T>::mma(s2, low.z, high.z, low.w, high.w, q[i + 1][0], q[i + 1][1]);
    }
    if (more) tile.load_key(static_cast<const char*>(p.key) + next, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] += s2[i];
    if (cap != 0.0F) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] = cap * tanhf(s[i] * p.scale / cap) * kLog2e;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] *= to_log2;
    }
    if (index < first_whole || index >= end_whole) {
      mask(s, item, index);
      const int first_seen = p.window_tokens == 0 ? 0 : limit_of(item, 0) - p.window_tokens;
      tile.clear_value_outside(first_seen, item.part.seq_len, index * kTileTokens, t);
    }
    float high0 = fmaxf(s[0], s[2]);
    float high1 = fmaxf(s[1], s[3]);
#pragma unroll
    for (int offset = 4; offset < 32; offset <<= 1) {
      high0 = fmaxf(high0, __shfl_xor_sync(~0U, high0, offset));
      high1 = fmaxf(high1, __shfl_xor_sync(~0U, high1, offset));
    }
    high0 = fmaxf(acc.max0, high0);
    high1 = fmaxf(acc.max1, high1);
    // A column that has seen nothing yet has maximum -inf; 0 stands in so that no difference is
    // NaN.
    const float base0 = high0 == -INFINITY ? 0.0F : high0;
    const float base1 = high1 == -INFINITY ? 0.0F : high1;
    const float keep0 = exp2_fast(acc.max0 - base0);
    const float keep1 = exp2_fast(acc.max1 - base1);
    acc.max0 = high0;
    acc.max1 = high1;
    s[0] = exp2_fast(s[0] - base0);
    s[1] = exp2_fast(s[1] - base1);
    s[2] = exp2_fast(s[2] - base0);
    s[3] = exp2_fast(s[3] - base1);
    acc.sum0 = acc.sum0 * keep0 + s[0] + s[2];
    acc.sum1 = acc.sum1 * keep1 + s[1] + s[3];
    const unsigned weight0 = transpose_8x8(Element<T>::pack(s[0], s[1]));
    const unsigned weight1 = transpose_8x8(Element<T>::pack(s[2], s[3]));
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      float* o = acc.o[i];
      o[0] *= keep0;
      o[1] *= keep1;
      o[2] *= keep0;
      o[3] *= keep1;
      const unsigned v0 = tile.value_word(i, 0);
      const unsigned v1 = tile.value_word(i, 1);
      const unsigned v2 = tile.value_word(i, 2);
      const unsigned v3 = tile.value_word(i, 3);
      // Two tokens' halves side by side: the low dims, then the high ones.
      Element<T>::mma(o, __byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632),
                      __byte_perm(v2, v3, 0x5410), __byte_perm(v2, v3, 0x7632), weight0, weight1);
    }
    if (more) tile.load_value(static_cast<const char*>(p.value) + next, g, t);
    next_block = after_next;
  }
#pragma unroll
  for (int offset = 4; offset < 32; offset <<= 1) {
    acc.sum0 += __shfl_xor_sync(~0U, acc.sum0, offset);
    acc.sum1 += __shfl_xor_sync(~0U, acc.sum1, offset);
  }
}

}  // namespace kvarena::kernels::decode
