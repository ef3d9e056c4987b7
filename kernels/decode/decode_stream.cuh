#pragma once

/// @file
/// The inner loop of the decode kernel: the units of one part that one warp takes. Included by
/// decode.cuh.

namespace kvarena::kernels::decode {

/// Returns whether this warp's first unit has tokens that the kernel before this one may still
/// write.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ bool Kernel<T, S, D, W, Mode>::reads_new_tokens(
    const WorkItem& item) const {
  const int old_tokens = item.part.seq_len - q_len(item);
  return first_unit(item) * kUnitTokens > old_tokens - kUnitTokens;
}

/// Computes the bytes from a plane's base to each tile of a unit. The last unit of a row may lack
/// its last tiles; the row's last tile is used in their place.
template <class T, class S, int D, int W, class Mode>
template <bool kFirst>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::find_tiles(
    std::int64_t (&offsets)[kTiles], const int (&blocks)[kTiles], const WorkItem& item,
    int unit) const {
#pragma unroll
  for (int u = 0; u < kTiles; ++u) {
    offsets[u] = tile_offset(blocks[u], item.head, tile_at<kFirst>(item, unit, u));
  }
}
/// Reads the block of each tile of a unit from the table. A unit past the part gets block 0.
template <class T, class S, int D, int W, class Mode>
template <bool kFirst>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::find_blocks(int (&blocks)[kTiles],
                                                                      const WorkItem& item,
                                                                      int unit) const {
#pragma unroll
  for (int u = 0; u < kTiles; ++u) {
    blocks[u] =
        unit < item.part.last_unit ? block_of(table(item), tile_at<kFirst>(item, unit, u)) : 0;
  }
}
/// Loads K of a unit.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::load_key(
    Tile (&tiles)[kTiles], const std::int64_t (&offsets)[kTiles]) const {
#pragma unroll
  for (int u = 0; u < kTiles; ++u) {
    tiles[u].load_key(static_cast<const char*>(p.key) + offsets[u], g, t);
  }
}
/// Loads V of a unit.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::load_value(
    Tile (&tiles)[kTiles], const std::int64_t (&offsets)[kTiles]) const {
#pragma unroll
  for (int u = 0; u < kTiles; ++u) {
    tiles[u].load_value(static_cast<const char*>(p.value) + offsets[u], g, t);
  }
}

/// Loads this warp's first unit, and the block ids of its second unit.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::load_first(Tile (&tiles)[kTiles],
                                                                     int (&next_blocks)[kTiles],
                                                                     const WorkItem& item) const {
  const int unit = first_unit(item);
  if (unit >= item.part.last_unit) return;
  int blocks[kTiles];
  std::int64_t offsets[kTiles];
  find_blocks<true>(blocks, item, unit);
  find_blocks<false>(next_blocks, item, unit + kUnitStep);
  find_tiles<true>(offsets, blocks, item, unit);
  load_key(tiles, offsets);
  load_value(tiles, offsets);
}

/// Prefetches this warp's second unit into the L2, because the memory is idle while the kernel
/// before this one ends.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::prefetch_second(
    const int (&blocks)[kTiles], const WorkItem& item) const {
  const int unit = first_unit(item) + kUnitStep;
  if (unit >= item.part.last_unit) return;
  std::int64_t offsets[kTiles];
  find_tiles<false>(offsets, blocks, item, unit);
#pragma unroll
  for (int u = 0; u < kTiles; ++u) {
#pragma unroll
    for (int byte = 0; byte < Tile::kBytes; byte += 32 * 128) {
      const std::int64_t at = offsets[u] + byte + lane * 128;
      if (byte + lane * 128 >= Tile::kBytes) break;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(p.key) + at));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(p.value) + at));
    }
  }
}

/// Stages the B operands of the query columns in shared memory: of each operand column g, with the
/// dims that K's operands have in lane t. Sets `unit_logit`, the factors from dot products of
/// columns 2t and 2t + 1 to logits.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::load_query(
    float (&unit_logit)[kOperands][2], const WorkItem& item) const {
#pragma unroll
  for (int n = 0; n < kOperands; ++n) {
    unsigned q[Tile::kSteps][2];
    const int column = item.chunk * kChunkColumns + n * kColumns + g;
    const bool exists = column < num_columns(item);
    const char* row = static_cast<const char*>(p.q) +
                      bytes_to(place_of(item, exists ? column : 0), p.q_token_stride);
#pragma unroll
    for (int i = 0; i < Tile::kSteps; ++i) {
      const char* at = row + Tile::query_dim(i, t) * 2;
      const uint2 v = exists ? *reinterpret_cast<const uint2*>(at) : make_uint2(0, 0);
      q[i][0] = v.x;
      q[i][1] = v.y;
    }
    unit_logit[n][0] = unit_logit[n][1] = p.scale;
    if constexpr (!std::is_same_v<S, T>) {
      unit_logit[n][0] = unit_logit[n][1] = p.scale * head_scale(p.scales.key, item);
      if constexpr (!std::is_same_v<T, Math>) narrow_query(q, unit_logit[n]);
    }
#pragma unroll
    for (int i = 0; i < Tile::kSteps; i += 2) {
      shared.warps[warp].q[n][i / 2][lane] = make_uint4(q[i][0], q[i][1], q[i + 1][0], q[i + 1][1]);
    }
  }
}

/// Converts q from bf16 to f16. f16 has the precision of bf16 but not its range, so each column is
/// first divided by a power of two that brings its largest element near 1.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::narrow_query(
    unsigned (&q)[Tile::kSteps][2], float (&unit_logit)[2]) const {
  const auto low = [](unsigned pair) { return __uint_as_float(pair << 16); };
  const auto high = [](unsigned pair) { return __uint_as_float(pair & 0xffff0000U); };
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < Tile::kSteps; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      largest = fmaxf(largest, fmaxf(fabsf(low(q[i][j])), fabsf(high(q[i][j]))));
    }
  }
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
  // The largest power of two that is not above it, limited to values whose inverse is a normal
  // number.
  const unsigned exponent = min(max(__float_as_uint(largest) >> 23, 32U), 222U);
  const float power = __uint_as_float(exponent << 23);
  const float inverse = __uint_as_float((254U - exponent) << 23);
#pragma unroll
  for (int i = 0; i < Tile::kSteps; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      q[i][j] = pack_pair<Math>(low(q[i][j]) * inverse, high(q[i][j]) * inverse);
    }
  }
  unit_logit[0] *= __shfl_sync(~0U, power, 8 * t);
  unit_logit[1] *= __shfl_sync(~0U, power, 8 * t + 4);
}

/// Masks the tokens that a column does not see: their logits become -inf. A slot that no column
/// sees may hold anything, even NaN, so its values become 0.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::mask(float (&s)[kOperands][4], Tile& tile,
                                                               const WorkItem& item,
                                                               int first_token) const {
#pragma unroll
  for (int n = 0; n < kOperands; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first_token + token_of(g) + (i >> 1) * 8;
      const int column = item.chunk * kChunkColumns + n * kColumns + 2 * t + (i & 1);
      const int limit = limit_of(item, column);
      const int start = p.window_tokens == 0 ? 0 : limit - p.window_tokens;
      if (token < start || token >= limit) s[n][i] = -INFINITY;
    }
  }
  const int first = first_seen(item);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int token = first_token + value_token(t, j);
    if (token < first || token >= item.part.seq_len) tile.clear_value(j);
  }
}

/// Returns the slots of this lane's V, of the tile that begins at `first_token`, that query token
/// `query` of the row sees.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ unsigned Kernel<T, S, D, W, Mode>::seen_slots(const WorkItem& item,
                                                                         int query,
                                                                         int first_token) const {
  const int limit = limit_of(item, query * group);
  const int start = p.window_tokens == 0 ? 0 : limit - p.window_tokens;
  unsigned seen = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int token = first_token + value_token(t, j);
    if (token >= start && token < limit) seen |= 1U << j;
  }
  return seen;
}

/// Adds the weighted values of a unit that some query tokens of the row see in part only, each
/// query token by itself. A weight of 0 is not enough there: 0 times an infinite value, or NaN, is
/// NaN.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::weigh_apart(
    Accumulator& acc, const Tile (&tiles)[kTiles], const unsigned (&weights)[kTiles][kOperands][2],
    const WorkItem& item, int unit) const {
  const int first_column = item.chunk * kChunkColumns;
  const int last_column = min(first_column + kChunkColumns, num_columns(item)) - 1;
#pragma unroll 1
  for (int query = first_column / group; query <= last_column / group; ++query) {
    const int first = query * group - first_column;  // of its columns here
#pragma unroll
    for (int n = 0; n < kOperands; ++n) {
      const int mine = n * kColumns + g;
      const bool is_mine = mine >= first && mine < first + group;
      const int column = n * kColumns + 2 * t - first;
      const bool has_even = column >= 0 && column < group;
      const bool has_odd = column >= -1 && column < group - 1;
#pragma unroll
      for (int u = 0; u < kTiles; ++u) {
        const unsigned seen = seen_slots(item, query, unit * kUnitTokens + u * kTileTokens);
        const unsigned weight0 = is_mine ? weights[u][n][0] : 0;
        const unsigned weight1 = is_mine ? weights[u][n][1] : 0;
#pragma unroll
        for (int i = 0; i < Tile::kSteps; ++i) {
          // Columns of other query tokens may get NaN, so they keep what they had.
          float(&o)[4] = acc.o[n][i];
          const float kept[4] = {o[0], o[1], o[2], o[3]};
          unsigned value[4];
          tiles[u].value_operand(value, i, seen);
          mma_m16n8k16<Math>(o, value, weight0, weight1);
          if (!has_even) {
            o[0] = kept[0];
            o[2] = kept[2];
          }
          if (!has_odd) {
            o[1] = kept[1];
            o[3] = kept[3];
          }
        }
      }
    }
  }
}

/// Computes the logits (log2, scaled, capped) of a unit's tokens.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::multiply_queries(
    float (&s)[kTiles][kOperands][4], const Tile (&tiles)[kTiles],
    const float (&unit_logit)[kOperands][2]) const {
#pragma unroll
  for (int u = 0; u < kTiles; ++u) {
    float odd[kOperands][4];
#pragma unroll
    for (int n = 0; n < kOperands; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[u][n][i] = odd[n][i] = 0.0F;
    }
    tiles[u].dot(s[u], odd, shared.warps[warp].q, lane);
#pragma unroll
    for (int n = 0; n < kOperands; ++n) {
      float(&its)[4] = s[u][n];
#pragma unroll
      for (int i = 0; i < 4; ++i) its[i] = (its[i] + odd[n][i]) * unit_logit[n][i & 1];
      if (p.soft_cap != 0.0F) {
#pragma unroll
        for (int i = 0; i < 4; ++i) its[i] = p.soft_cap * tanhf(its[i] / p.soft_cap) * kLog2e;
      }
    }
  }
}

/// Does a step of online softmax (Milakov and Gimelshein, 2018): turns logits into weights relative
/// to the running maximum of columns 2t and 2t + 1, times 2^kBits. `keep` is the factor for earlier
/// weights.
template <int kBits, int D, int kTiles, int kOperands>
__device__ __forceinline__ void update_softmax(Accumulator<D, kOperands>& acc,
                                               float (&s)[kTiles][kOperands][4],
                                               float (&keep)[kOperands][2]) {
#pragma unroll
  for (int n = 0; n < kOperands; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float highest = fmaxf(s[0][n][c], s[0][n][c + 2]);
#pragma unroll
      for (int u = 1; u < kTiles; ++u) {
        highest = fmaxf(highest, fmaxf(s[u][n][c], s[u][n][c + 2]));
      }
#pragma unroll
      for (int offset = 4; offset < 32; offset <<= 1) {
        highest = fmaxf(highest, __shfl_xor_sync(~0U, highest, offset));
      }
      highest = fmaxf(acc.maximum[n][c], highest);
      // The maximum of a column that has seen nothing yet is -inf. 0 replaces it, so that no
      // difference is NaN.
      const float base = highest == -INFINITY ? 0.0F : highest;
      keep[n][c] = exp2_fast(acc.maximum[n][c] - base);
      acc.maximum[n][c] = highest;
      acc.sum[n][c] *= keep[n][c];
#pragma unroll
      for (int u = 0; u < kTiles; ++u) {
        float(&its)[4] = s[u][n];
        its[c] = exp2_fast(its[c] - (base - kBits));
        its[c + 2] = exp2_fast(its[c + 2] - (base - kBits));
        acc.sum[n][c] += its[c] + its[c + 2];
      }
    }
  }
}

/// Computes this warp's units, which are kUnitStep apart in the part. It requests K of the next
/// unit as soon as K of this unit is used, and V likewise. With `takes` the first thread takes the
/// index of its next work item, as late as the latency allows, so that no thread block holds work
/// that another could do.
template <class T, class S, int D, int W, class Mode>
__device__ __forceinline__ void Kernel<T, S, D, W, Mode>::stream(Accumulator& acc,
                                                                 Tile (&tiles)[kTiles],
                                                                 int (&next_blocks)[kTiles],
                                                                 const WorkItem& item, bool takes,
                                                                 int& taken) const {
  float unit_logit[kOperands][2];
  load_query(unit_logit, item);
#pragma unroll
  for (int n = 0; n < kOperands; ++n) {
    unit_logit[n][0] *= p.soft_cap == 0.0F ? kLog2e : 1.0F;
    unit_logit[n][1] *= p.soft_cap == 0.0F ? kLog2e : 1.0F;
  }
  // Every column sees every token of the units [first_whole, end_whole).
  const int end_whole = limit_of(item, 0) / kUnitTokens;
  const int unseen = p.window_tokens == 0 ? 0 : max(0, item.part.seq_len - p.window_tokens);
  const int first_whole = (unseen + kUnitTokens - 1) / kUnitTokens;

  for (int unit = first_unit(item); unit < item.part.last_unit; unit += kUnitStep) {
    const bool more = unit + kUnitStep < item.part.last_unit;
    int after_next[kTiles];
    std::int64_t next[kTiles];
    find_blocks<false>(after_next, item, unit + 2 * kUnitStep);
    find_tiles<false>(next, next_blocks, item, unit + kUnitStep);
    float s[kTiles][kOperands][4];
    float keep[kOperands][2];
    multiply_queries(s, tiles, unit_logit);
    if (more) load_key(tiles, next);
    if (!more && takes && thread == 0) taken = take();
    const bool is_edge = unit < first_whole || unit >= end_whole;
    if (is_edge) {
#pragma unroll
      for (int u = 0; u < kTiles; ++u) {
        mask(s[u], tiles[u], item, unit * kUnitTokens + u * kTileTokens);
      }
    }
    update_softmax<kWeightBits<Math>>(acc, s, keep);
    unsigned weights[kTiles][kOperands][2];
#pragma unroll
    for (int u = 0; u < kTiles; ++u) {
#pragma unroll
      for (int n = 0; n < kOperands; ++n) {
        const float(&its)[4] = s[u][n];
        weights[u][n][0] = transpose_8x8(pack_pair<Math>(its[0], its[1]));
        weights[u][n][1] = transpose_8x8(pack_pair<Math>(its[2], its[3]));
      }
    }
    const bool is_apart = !Mode::kOneToken && is_edge && q_len(item) > 1;
#pragma unroll
    for (int i = 0; i < Tile::kSteps; ++i) {
#pragma unroll
      for (int n = 0; n < kOperands; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc.o[n][i][j] *= keep[n][j & 1];
      }
#pragma unroll
      for (int u = 0; u < kTiles; ++u) {
        if (is_apart) continue;
        unsigned value[4];
        tiles[u].value_operand(value, i);
#pragma unroll
        for (int n = 0; n < kOperands; ++n) {
          mma_m16n8k16<Math>(acc.o[n][i], value, weights[u][n][0], weights[u][n][1]);
        }
      }
    }
    if constexpr (!Mode::kOneToken) {
      if (is_apart) weigh_apart(acc, tiles, weights, item, unit);
    }
    if (more) load_value(tiles, next);
#pragma unroll
    for (int u = 0; u < kTiles; ++u) next_blocks[u] = after_next[u];
  }
  if (item.part.first_unit >= item.part.last_unit && takes && thread == 0) taken = take();
#pragma unroll
  for (int n = 0; n < kOperands; ++n) {
#pragma unroll
    for (int offset = 4; offset < 32; offset <<= 1) {
      acc.sum[n][0] += __shfl_xor_sync(~0U, acc.sum[n][0], offset);
      acc.sum[n][1] += __shfl_xor_sync(~0U, acc.sum[n][1], offset);
    }
  }
}

}  // namespace kvarena::kernels::decode
