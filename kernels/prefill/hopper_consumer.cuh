#pragma once

/// @file
/// A consumer warpgroup of the Hopper kernel: 64 packed rows of each item. The products of a tile's
/// keys run while the weights of the tile before multiply V, and the softmax runs under both (Shah
/// et al., FlashAttention-3, 2024). Included by prefill_hopper.cuh.

#include "kernels/common/hopper_operands.cuh"
#include "kernels/common/hopper_split_query.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/prefill/hopper_repair.cuh"
#include "kernels/prefill/hopper_softmax.cuh"

namespace kvarena::kernels::prefill {

/// Ids of named barriers.
inline constexpr int kTurnOfFirst = 2;  ///< kTurnOfFirst + i: warpgroup i may use the tensor cores
inline constexpr int kQueryStored = 4;  ///< kQueryStored + i: warpgroup i has stored its Q

/// The state of a thread. Warp `warp` of the warpgroup has rows 16 * warp + g and + 8 of it, where
/// lane = 4 * g + t.
template <class Tile>
struct Consumer {
  using T = typename Tile::T;
  using Math = typename Tile::Math;
  static constexpr int D = Tile::D;
  static constexpr int N = Tile::N;
  static constexpr int kBlocks = Tile::kBlocks;
  static constexpr int kStages = Tile::kStages;
  static constexpr int kKeyStages = Tile::kKeyStages;

  const PrefillParams& p;
  const HopperLaunch& launch;
  HopperShared<Tile>& shared;
  const int index;  ///< of the warpgroup, 0 or 1
  const int warp;
  const int g;
  const int t;
  float scale[2];  ///< of a row's logits, to base 2; with a soft cap the slope before it
  int keys = 0;    ///< tiles of K multiplied
  int values = 0;  ///< tiles of V multiplied
  SoftmaxRows softmax;
  float o[D / 2];
  float s[N / 2];
  std::uint32_t weights[kBlocks][4];
  QueryRegisters<D> q;

  __device__ __forceinline__ Consumer(const PrefillParams& p, const HopperLaunch& launch,
                                      HopperShared<Tile>& shared, int index, int warp, int lane)
      : p(p), launch(launch), shared(shared), index(index), warp(warp), g(lane / 4), t(lane % 4) {
    scale[0] = scale[1] = Tile::kHasCap ? launch.cap_slope : launch.scale_log2;
  }

  /// Returns the packed row of h = 0 of an item.
  template <class AnyItem>
  __device__ __forceinline__ int row_of(const AnyItem& item) const {
    return item.rows_tile * Tile::kRows + index * Tile::kGroupRows + warp * 16 + g;
  }

  /// Returns the scale of a head of K or V, 1 for planes that have none.
  __device__ __forceinline__ float stored_scale(const float* scales, int head) const {
    if constexpr (!Tile::kIsFp8) return 1.0F;
    return scales == nullptr ? 1.0F : __ldg(scales + (p.attention.scales.per_head ? head : 0));
  }

  /// Rounds the loaded Q to the type of operands, and finds the scales of its rows. K and V of fp8
  /// are multiplied in f16.
  __device__ __forceinline__ void narrow_query(int head) {
    if constexpr (Tile::kIsFp8) {
      const float base = (Tile::kHasCap ? launch.cap_slope : launch.scale_log2) *
                         stored_scale(p.attention.scales.key, head);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        scale[h] = base;
        if constexpr (Tile::kSplitsQuery) {
          scale[h] *= split_query_row<D>(q, h);
        } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
          scale[h] *= narrow_query_row<D>(q, h);
        }
      }
    }
  }

  /// Starts the loads of an item's Q. An item that is the end has no rows: zeros.
  template <class AnyItem>
  __device__ __forceinline__ void load_query(const AnyItem& item) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row_of(item) + 8 * h;
      const auto* from = static_cast<const char*>(p.attention.q) +
                         place_of(item, launch, row).bytes(p.attention.q_token_stride, D * 2);
      const bool exists = row < item.q_len * launch.group.value;
      if constexpr (Tile::kSplitsQuery) {
        load_split_query_row<D>(q, h, from, t, exists);
      } else {
        load_query_row<D>(q, h, from, t, exists);
      }
    }
  }

  /// Loads an item's Q and stores it in shared memory, in the order of the pool.
  template <class AnyItem>
  __device__ __forceinline__ void stage_query(const AnyItem& item) {
    load_query(item);
    narrow_query(item.head);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int j = 0; j < D / 32; ++j) {
        const std::uint32_t* words = q[h * (D / 32) + j];
        char* to = shared.query + index * (Tile::kGroupRows * D * 2) +
                   (warp * 2 + h) * Tile::kGroupBytes + j * 512 + g * 64 +
                   ((t ^ ((g >> 1) & 3)) << 4);
        *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
    fence_async_proxy();
    if (index == 0) {
      sync_named<kQueryStored>(128);
    } else {
      sync_named<kQueryStored + 1>(128);
    }
  }

  /// Waits for this warpgroup's turn at the tensor cores.
  __device__ __forceinline__ void wait_for_turn() const {
    if constexpr (!Tile::kTakesTurns) return;
    if (index == 0) {
      sync_named<kTurnOfFirst>(256);
    } else {
      sync_named<kTurnOfFirst + 1>(256);
    }
  }
  /// Gives the other warpgroup its turn.
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (!Tile::kTakesTurns) return;
    if (index == 0) {
      arrive_named<kTurnOfFirst + 1>(256);
    } else {
      arrive_named<kTurnOfFirst>(256);
    }
  }

  __device__ __forceinline__ void release(Barrier* empty) const {
    if (threadIdx.x % 128 == 0) arrive(empty);
  }

  /// s = Q K^T.
  __device__ __forceinline__ void multiply_keys(int stage) {
    const std::uint32_t base =
        operand_base(shared_address(shared.keys[0]), 16) + stage * (Tile::kKeyStageBytes >> 4);
    constexpr int kSteps = Tile::kKeyBytes / 32;
#pragma unroll
    for (int i = 0; i < kSteps * (Tile::kSplitsQuery ? 2 : 1); ++i) {
      const int step = i % kSteps;
      const int at =
          Tile::kKeyPiece == kPieceBytes ? (step >> 1) * 512 + (step & 1) * 32 : step * 256;
      const std::uint64_t key = operand_at<Tile::kKeyGroupBytes, Tile::kKeySwizzle>(base, at);
      if constexpr (Tile::kSplitsQuery) {
        // The smaller parts come first: what sums lose then is smaller.
        std::uint32_t a[4];
        split_operand<D>(a, q, step, i < kSteps ? 1 : 0);
        WgmmaFp8<N>::rs_k(s, a, key, i > 0);
      } else if constexpr (Tile::kHasSharedQuery) {
        // The compiler does not know that the index is the same in all lanes, and would keep each
        // step's descriptor in registers.
        const std::uint32_t query = operand_base(shared_address(shared.query), 16) +
                                    same_in_warp(index) * (Tile::kGroupRows * D * 2 >> 4);
        Wgmma<Math, N>::ss(s, operand_at<Tile::kGroupBytes, Tile::kSwizzle>(query, at), key,
                           step > 0);
      } else {
        std::uint32_t a[4];
        query_operand<D>(a, q, step);
        Wgmma<Math, N>::rs_k(s, a, key, step > 0);
      }
    }
  }

  /// o += weights * V.
  __device__ __forceinline__ void multiply_values(int stage) {
    const std::uint32_t base = operand_base(shared_address(shared.values[0]), 8 * Tile::kPiece) +
                               stage * (Tile::kStageBytes >> 4);
    fence_products();
    constexpr int kDims = Tile::kValueDims;
#pragma unroll
    for (int part = 0; part < D / kDims; ++part) {
      auto& outputs = reinterpret_cast<float(&)[kDims / 2]>(o[part * (kDims / 2)]);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int at = b * Tile::kTileBytes + part * kDims * kAtomTokens * 2;
        Wgmma<Math, kDims>::rs_mn(outputs, weights[b],
                                  operand_at<Tile::kGroupBytes, Tile::kSwizzle>(base, at));
      }
    }
    commit_products();
  }

  /// Rounds weights to operands: an accumulator of 16 tokens is an operand as it lies.
  __device__ __forceinline__ void round_weights() {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        weights[b][j] = pack_pair<Math>(s[b * 8 + 2 * j], s[b * 8 + 2 * j + 1]);
      }
    }
  }

  /// Applies the soft cap.
  __device__ __forceinline__ void cap() {
    if constexpr (Tile::kHasCap) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] = cap_logit(s[i], launch.cap_log2, scale[i >> 1 & 1]);
    }
  }

  /// Calls `weigh(scale)` with the scales of logits after the soft cap.
  template <class Weigh>
  __device__ __forceinline__ void with_scale(Weigh&& weigh) {
    if constexpr (Tile::kHasCap) {
      const float ones[2] = {1.0F, 1.0F};
      weigh(ones);
    } else {
      weigh(scale);
    }
  }

  /// The first tile of an item, which has no weights of a tile before.
  __device__ __forceinline__ void multiply_first(int tile) {
    const RingPlace<kKeyStages> place(keys);
    wait(&shared.keys_full[place.stage], place.parity);
    wait_for_turn();
    fence_products();
    fence_registers(s);
    multiply_keys(place.stage);
    commit_products();
    pass_turn();
    wait_products<0>();
    ++keys;
    fence_registers(s);
    release(&shared.keys_empty[place.stage]);
    cap();
    with_scale([&](const float(&of_rows)[2]) {
      weigh_first_tile<Math, Tile::kHasWindow>(s, softmax, of_rows, tile * N + 2 * t, t);
    });
    round_weights();
  }

  /// Multiplies outputs so far by what is kept of them after a tile.
  __device__ __forceinline__ void shrink_outputs() {
    if (__any_sync(~0U, softmax.keep[0] != 1.0F || softmax.keep[1] != 1.0F)) {
#pragma unroll
      for (int i = 0; i < D / 2; ++i) o[i] *= softmax.keep[(i >> 1) & 1];
    }
  }

  /// Values of the tile before, then keys of a tile.
  template <bool kIsMasked>
  __device__ __forceinline__ void multiply_apart(int tile) {
    const RingPlace<kStages> value(values++);
    wait(&shared.values_full[value.stage], value.parity);
    fence_registers(o);
    multiply_values(value.stage);
    wait_products<0>();
    fence_registers(o);
    release(&shared.values_empty[value.stage]);
    const RingPlace<kKeyStages> key(keys++);
    wait(&shared.keys_full[key.stage], key.parity);
    fence_products();
    fence_registers(s);
    multiply_keys(key.stage);
    commit_products();
    wait_products<0>();
    fence_registers(s);
    release(&shared.keys_empty[key.stage]);
    cap();
    // Again, so that it takes no register in between.
    if constexpr (kIsMasked) find_seen(shared.kept[index * 4 + warp]);
    with_scale([&](const float(&of_rows)[2]) {
      weigh_tile<Math, kIsMasked, Tile::kHasWindow>(s, softmax, of_rows, tile * N + 2 * t);
    });
    round_weights();
    shrink_outputs();
  }

  /// Keys of a tile and values of the tile before.
  template <bool kIsMasked>
  __device__ __forceinline__ void multiply_next(int tile) {
    if constexpr (!Tile::kOverlapsTiles) return multiply_apart<kIsMasked>(tile);
    const RingPlace<kKeyStages> key(keys);
    const RingPlace<kStages> value(values);
    wait(&shared.keys_full[key.stage], key.parity);
    wait_for_turn();
    fence_products();
    fence_registers(s);
    multiply_keys(key.stage);
    commit_products();
    wait(&shared.values_full[value.stage], value.parity);
    fence_registers(o);
    multiply_values(value.stage);
    pass_turn();
    ++keys;
    ++values;
    wait_products<1>();
    fence_registers(s);
    release(&shared.keys_empty[key.stage]);
    cap();
    with_scale([&](const float(&of_rows)[2]) {
      weigh_tile<Math, kIsMasked, Tile::kHasWindow>(s, softmax, of_rows, tile * N + 2 * t);
    });
    fence_registers(s);
    wait_products<0>();
    fence_registers(o);
    release(&shared.values_empty[value.stage]);
    round_weights();
    shrink_outputs();
  }

  /// Values of an item's last tile. The next item's Q is on its way meanwhile.
  __device__ __forceinline__ void multiply_last(int next_item) {
    const RingPlace<kStages> place(values);
    wait(&shared.values_full[place.stage], place.parity);
    ++values;
    fence_registers(o);
    multiply_values(place.stage);
    const RingPlace<kItemSlots> next(next_item);
    wait(&shared.item_full[next.stage], next.parity);
    if constexpr (!Tile::kHasSharedQuery) load_query(shared.items[next.stage]);
    wait_products<0>();
    fence_registers(o);
    release(&shared.values_empty[place.stage]);
  }

  /// Writes a row's outputs. Returns whether one of this thread's is not finite.
  __device__ __forceinline__ bool write_row(int h, float share, char* to, bool exists) {
    constexpr int kPieces = D / 32;
    std::uint32_t words[kPieces][4];
    std::uint32_t check = 0;
#pragma unroll
    for (int b = 0; b < kPieces * 4; ++b) {
      words[b / 4][b % 4] = pack_pair<T>(o[b * 4 + 2 * h] * share, o[b * 4 + 2 * h + 1] * share);
      add_check<T>(check, words[b / 4][b % 4]);
    }
    transpose_quads<kPieces>(words, t);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) store_piece(to + t * 16 + i * 64, words[i], exists);
#pragma unroll
    for (int b = kPieces * 4; b < D / 8; ++b) {
      const std::uint32_t word =
          pack_pair<T>(o[b * 4 + 2 * h] * share, o[b * 4 + 2 * h + 1] * share);
      add_check<T>(check, word);
      store_word(to + b * 16 + t * 4, word, exists);
    }
    return exists && !is_finite(check);
  }

  /// Writes an item's outputs and log-sum-exps.
  __device__ __forceinline__ void write_item() {
    const AttentionParams& a = p.attention;
    const KeptItem& item = shared.kept[index * 4 + warp];
    const float value_scale = stored_scale(a.scales.value, item.head);
    bool is_bad[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      softmax.sum[h] += __shfl_xor_sync(~0U, softmax.sum[h], 1);
      softmax.sum[h] += __shfl_xor_sync(~0U, softmax.sum[h], 2);
      const int row = row_of(item) + 8 * h;
      const bool exists = row < item.q_len * launch.group.value;
      const RowPlace place = place_of(item, launch, row);
      const float* sink = a.sinks == nullptr ? nullptr : a.sinks + place.head;
      const float top = softmax.top[h] * (Tile::kHasCap ? 1.0F : scale[h]);
      const RowEnd end = end_row<Math>(top, softmax.sum[h], sink);
      char* const to = static_cast<char*>(a.out) + place.bytes(a.out_token_stride, D * 2);
      is_bad[h] = write_row(h, end.share * value_scale, to, exists);
      if (a.lse != nullptr) {
        store_word(a.lse + place.index(a.num_q_heads), __float_as_uint(end.lse), exists && t == 0);
      }
    }
    if (__any_sync(~0U, is_bad[0] || is_bad[1])) {
      const float of_dot = (Tile::kHasCap ? launch.cap_slope : launch.scale_log2) *
                           stored_scale(a.scales.key, item.head);
      Repair<Tile>{p, launch, item, g * 4 + t}.run(row_of(item), is_bad, of_dot, value_scale);
    }
  }

  /// Finds the tokens that the rows of an item see.
  template <class AnyItem>
  __device__ __forceinline__ void find_seen(const AnyItem& item) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      softmax.end[h] = visible_end(item, launch, row_of(item) + 8 * h);
      const int window = p.attention.window_tokens;
      softmax.begin[h] = Tile::kHasWindow && window > 0 ? softmax.end[h] - window : 0;
    }
  }

  /// Sets up the state of an item, and keeps what its end needs.
  __device__ __forceinline__ void begin(const Item& item) {
    find_seen(item);
    if (g == 0 && t == 0) {
      shared.kept[index * 4 + warp] = {
          item.table, item.rows_tile, item.head, item.q_begin,
          item.q_len, item.seq_len,   item.from, min(item.end_tile * N, item.seq_len)};
    }
#pragma unroll
    for (int i = 0; i < D / 2; ++i) o[i] = 0.0F;
  }

  /// Takes items until none is left.
  __device__ __forceinline__ void run() {
    if (Tile::kTakesTurns && index == 1) arrive_named<kTurnOfFirst>(256);
    wait(&shared.item_full[0], 0);
    if constexpr (!Tile::kHasSharedQuery) load_query(shared.items[0]);
    for (int n = 0;; ++n) {
      const int slot = n % kItemSlots;
      const Item& item = shared.items[slot];
      const int end_tile = item.end_tile;
      const int tiles = end_tile - item.first_tile;
      if (tiles == 0) break;
      const int first_row = item.rows_tile * Tile::kRows;
      const int first_end = visible_end(item, launch, first_row);
      const int last_end = visible_end(item, launch, first_row + Tile::kRows - 1);
      [[maybe_unused]] const int head = item.head;
      begin(item);
      __syncwarp();
      if (kWarpArrivals > 1 || (g == 0 && t == 0)) arrive(&shared.item_empty[slot]);
      // Tiles before `top` and from `bottom` on have tokens that some row does not see.
      const int top = min(max(end_tile - first_end / N, 1), tiles);
      int bottom = tiles;
      if constexpr (Tile::kHasWindow) {
        const int window = p.attention.window_tokens;
        const int whole = end_tile - (last_end - window + N - 1) / N;
        if (window > 0) bottom = max(top, min(tiles, whole));
      }
      if constexpr (Tile::kHasSharedQuery) {
        stage_query(shared.kept[index * 4 + warp]);
      } else {
        narrow_query(head);
        if constexpr (!Tile::kSplitsQuery) transpose_query<D>(q, t);
      }
      multiply_first(end_tile - 1);
      int i = 1;
#pragma unroll 1
      for (; i < top; ++i) multiply_next<true>(end_tile - 1 - i);
#pragma unroll 1
      for (; i < bottom; ++i) multiply_next<false>(end_tile - 1 - i);
      if constexpr (Tile::kHasWindow) {
#pragma unroll 1
        for (; i < tiles; ++i) multiply_next<true>(end_tile - 1 - i);
      }
      multiply_last(n + 1);
      write_item();
      __syncwarp();  // the kept item is read by then
    }
    if (Tile::kTakesTurns && index == 0) sync_named<kTurnOfFirst>(256);
  }
};

}  // namespace kvarena::kernels::prefill
