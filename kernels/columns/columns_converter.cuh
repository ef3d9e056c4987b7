#pragma once

/// @file
/// The warpgroup that loads K and V of fp8 for the columns kernel and stores them as f16 operands.
/// It takes the place of the producer. The slabs of the thread block's segments are converted first
/// to last, K before V, and each is loaded while the one before it is converted. Tokens older than
/// the query tokens are loaded before the kernel in front has completed. Included by columns.cuh.

#include "kernels/columns/columns_config.cuh"
#include "kernels/columns/columns_slabs.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/hopper_fp8.cuh"
#include "kernels/common/hopper_operands.cuh"

#include <cstddef>
#include <cstdint>

namespace kvarena::kernels::columns {

/// A thread of one of the four warps. A warp has 16-token tiles of each slab, or a part of one.
template <class C>
struct Converter {
  static constexpr int kWarps = 4;
  using Order = PieceOrder<C::kDim>;
  using TableSlabs = Slabs<C>;
  static constexpr int kSharers = C::kTiles < kWarps ? kWarps / C::kTiles : 1;  ///< of a tile
  static constexpr int kMine = C::kTiles < kWarps ? 1 : C::kTiles / kWarps;     ///< tiles of a warp
  static constexpr int kLoads = Order::kLoads / kSharers;  ///< of a tile, of a warp
  static constexpr int kPoolTileBytes = kTileTokens * C::kDim;
  static_assert(C::kTiles % kWarps == 0 || kWarps % C::kTiles == 0);
  static_assert(Order::kLoads % kSharers == 0 && !Order::kIsRows);
  using Pieces = std::uint32_t[kMine][kLoads][4];

  const Launch& launch;
  Shared<C>& shared;
  const int warp;  ///< of the four
  const Order order;
  int slab = 0;             ///< slabs that are converted, of all segments
  bool has_waited = false;  ///< for the kernel in front

  /// Returns the warp's m-th tile of a slab, and its first load of a tile.
  __device__ __forceinline__ int tile_of(int m) const { return warp / kSharers + m * kWarps; }
  __device__ __forceinline__ int first_load() const { return warp % kSharers * kLoads; }

  /// Waits for the kernel in front, then lets the next one begin.
  __device__ __forceinline__ void follow() {
    wait_for_previous_kernel();
    let_next_kernel_begin();
    has_waited = true;
  }

  /// Returns a number of the segment that the lanes of the warp hold.
  static __device__ __forceinline__ int held_number(int words, std::size_t offset) {
    return __shfl_sync(~0U, words, static_cast<int>(offset / sizeof(std::int32_t)));
  }

  /// What the warp loads of a slab: K or V. For each of its tiles this lane's first piece, and
  /// whether the lane's tokens of the first eight and of the others are seen.
  struct Source {
    const char* from[kMine];
    bool is_seen[kMine][2];
  };

  /// Returns what the warp loads of a slab of K or V whose first token is `slab_token`. `blocks`
  /// are the table entries of its tiles. Tokens before `first_seen` and from `seq_len` on become
  /// zeros: in V because a weight of 0 times NaN is NaN, in K because there may be no block.
  __device__ __forceinline__ Source source_of(const char* plane, int slab_token, int first_seen,
                                              int seq_len, const int (&blocks)[kMine]) const {
    Source source;
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
      const int first = slab_token + tile_of(m) * kTileTokens;
      source.from[m] =
          plane +
          TableSlabs::template tile_offset<kPoolTileBytes>(launch, blocks[m], first / kTileTokens) +
          order.from + first_load() * Order::kFromStep;
      const int token = first + order.token();
      const int other = token + kAtomTokens;
      source.is_seen[m][0] = token >= first_seen && token < seq_len;
      source.is_seen[m][1] = other >= first_seen && other < seq_len;
    }
    return source;
  }

  /// Starts a load.
  __device__ __forceinline__ void load(std::uint32_t (&piece)[4], const Source& source, int m,
                                       int i) const {
    load_piece(piece, source.from[m] + i * Order::kFromStep,
               source.is_seen[m][order.is_second(first_load() + i) ? 1 : 0]);
  }
  /// Starts all loads of a slab.
  __device__ __forceinline__ void load_all(Pieces& pieces, const Source& source) const {
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) load(pieces[m][i], source, m, i);
    }
  }

  /// Converts what is loaded to a stage, when consumers have left it, and hands it to them. Each
  /// piece of the next slab is on its way as soon as the one in its place is converted; there is
  /// none after the last slab.
  __device__ __forceinline__ void fill(Pieces& pieces, char* stage, Barrier* empty, Barrier* full,
                                       const Source* next) const {
    wait(empty, ((slab / C::kStages) & 1) ^ 1);
    const std::uint32_t to = shared_address(stage) + warp / kSharers * C::kTileBytes + order.to +
                             first_load() * Order::kToStep;
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const std::uint32_t at = to + m * kWarps * C::kTileBytes + i * Order::kToStep;
        store_piece_as_f16(at, at ^ kChunkBytes, pieces[m][i]);
        if (next != nullptr) load(pieces[m][i], *next, m, i);
      }
    }
    fence_async_proxy();
    arrive_as_warp(full, order.lane);
  }
  __device__ __forceinline__ void fill_key(Pieces& pieces, const Source* next) const {
    const int stage = slab % C::kStages;
    fill(pieces, shared.key[stage], &shared.key_empty[stage], &shared.key_full[stage], next);
  }
  __device__ __forceinline__ void fill_value(Pieces& pieces, const Source* next) const {
    const int stage = slab % C::kStages;
    fill(pieces, shared.value[stage], &shared.value_empty[stage], &shared.value_full[stage], next);
  }

  __device__ __forceinline__ void run(int words);
};

/// Converts all segments of the thread block. The entries of the next slabs are loaded while the
/// current ones are converted, and segments are loaded two ahead. Registers are few, so the numbers
/// of a segment stay where its words are.
template <class C>
__device__ __forceinline__ void Converter<C>::run(int words) {
  const int lane = order.lane;
  const auto number = [&](std::size_t offset) { return held_number(words, offset); };
  int held = TableSlabs::load_entries(launch, segment_of(words), 0, lane);
  int next = number(offsetof(ColumnsSegment, next));
  next = next >= 0 ? load_words(launch, next, lane) : 0;
  Pieces keys;
  Pieces values;
  bool is_first = true;
  wait_for_set_up<C>();
  while (true) {
    const int slabs = number(offsetof(ColumnsSegment, slabs));
    const bool has_next = number(offsetof(ColumnsSegment, next)) >= 0;
    int after_next = 0;
    for (int first = 0; first < slabs; first += TableSlabs::kSlabsAhead) {
      int ahead = 0;
      if (first + TableSlabs::kSlabsAhead < slabs) {
        ahead = TableSlabs::load_entries(launch, segment_of(words), first + TableSlabs::kSlabsAhead,
                                         lane);
      } else if (has_next) {
        ahead = TableSlabs::load_entries(launch, segment_of(next), 0, lane);
        const int index = held_number(next, offsetof(ColumnsSegment, next));
        after_next = index >= 0 ? load_words(launch, index, lane) : 0;
      }
#pragma unroll 1
      for (int i = first; i < min(slabs, first + TableSlabs::kSlabsAhead); ++i) {
        int blocks[kMine];
#pragma unroll
        for (int m = 0; m < kMine; ++m) {
          blocks[m] = __shfl_sync(~0U, held, (i - first) * C::kTiles + tile_of(m));
        }
        const int token = number(offsetof(ColumnsSegment, first_token)) + i * C::kTokens;
        const int seq_len = number(offsetof(ColumnsSegment, seq_len));
        const int first_seen = number(offsetof(ColumnsSegment, first_seen));
        const int head = number(offsetof(ColumnsSegment, head));
        const bool has_new_tokens =
            token + C::kTokens > seq_len - number(offsetof(ColumnsSegment, q_len));
        if (!has_waited && (slab + 1 >= C::kStages || has_new_tokens)) follow();
        const ColumnsParams& p = launch.params;
        const Source its_keys = source_of(static_cast<const char*>(p.key) + head * p.head_stride,
                                          token, first_seen, seq_len, blocks);
        const Source its_values =
            source_of(static_cast<const char*>(p.value) + head * p.value_head_stride, token,
                      first_seen, seq_len, blocks);
        if (is_first) {
          load_all(keys, its_keys);
          load_all(values, its_values);
          is_first = false;
        } else {
          fill_key(keys, &its_keys);
          fill_value(values, &its_values);
          ++slab;
        }
      }
      held = ahead;
    }
    if (!has_next) break;
    words = next;
    next = after_next;
  }
  if (!has_waited) follow();
  if (is_first) return;
  fill_key(keys, nullptr);
  fill_value(values, nullptr);
}

}  // namespace kvarena::kernels::columns
