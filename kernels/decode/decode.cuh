#pragma once

/// @file
/// The decode kernel. The tokens of a tile are the rows of mma.m16n8k16, and eight query columns
/// are its columns; a thread block has one or two such operands. K and V go from global memory
/// directly into mma operands; the `chunked` tile order exists for that. Lane `l` of a warp is (g,
/// t) = (l / 4, l % 4), as in the PTX description of the fragments: S^T holds tokens token_of(g)
/// and token_of(g) + 8 of columns 2t and 2t + 1.

#include "kernels/common/cluster.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/decode/decode.h"
#include "kernels/decode/decode_tiles.cuh"
#include "kernels/decode/decode_workspace.h"

#include <bit>
#include <cstdint>
#include <type_traits>

namespace kvarena::kernels::decode {

inline constexpr float kLog2e = 1.4426950408889634F;

/// Weights that are rounded to f16 are multiplied by two to this power. Without it, weights below
/// 2^-24 of the largest one would vanish, and those of a long sequence together are not small. Sums
/// of weights and outputs contain the factor, so it cancels except in the log-sum-exp and against
/// sinks.
template <class Math>
inline constexpr int kWeightBits = std::is_same_v<Math, __half> ? 15 : 0;

/// Returns 2^x by the hardware's approximation.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// Returns the same value, which the compiler treats as new at each call. Values computed from it
/// then do not occupy registers from one work item to the next.
__device__ __forceinline__ int opaque(int x) {
  int y;
  asm volatile("mov.u32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ std::int64_t opaque(std::int64_t x) {
  std::int64_t y;
  asm volatile("mov.b64 %0, %1;" : "=l"(y) : "l"(x));
  return y;
}
__device__ __forceinline__ void* opaque(void* x) {
  void* y;
  asm volatile("mov.u64 %0, %1;" : "=l"(y) : "l"(x));
  return y;
}
/// Transposes an 8x8 matrix of 16-bit elements across the warp.
__device__ __forceinline__ unsigned transpose_8x8(unsigned x) {
  unsigned y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// The running softmax state and output of one warp. The rows of O^T are dims, its columns are
/// query columns.
template <int D, int kOperands>
struct Accumulator {
  float o[kOperands][D / 16][4];
  float maximum[kOperands][2];  // of columns 2t and 2t + 1 of an operand, in log2
  float sum[kOperands][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kOperands; ++n) {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) o[n][i][0] = o[n][i][1] = o[n][i][2] = o[n][i][3] = 0.0F;
      maximum[n][0] = maximum[n][1] = -INFINITY;
      sum[n][0] = sum[n][1] = 0.0F;
    }
  }
};

/// A work item: a part of the units of one (row, head, column chunk).
struct alignas(16) WorkItem {
  DecodePart part;
  int head;   ///< KV head
  int chunk;  ///< of query columns
};

/// The shared memory of one warp. It holds the query operands during the loop over units, and the
/// warp's result after that. In a cluster, the first warp's then gets the result of the thread
/// block, with the maximum and sum of a column behind its dims.
template <int D, int kOperands>
union WarpShared {
  uint4 q[kOperands][D / 32][32];  // [operand][two steps][lane]
  float o[kOperands * kColumns][D + 4];
};

template <int D, int W, int kOperands>
struct Shared {
  alignas(16) WarpShared<D, kOperands> warps[W];
  float max_sum[W][kOperands * kColumns][2];
  WorkItem items[2];  // current and next item
  int next;           // index of the next item
  int is_last;
};

/// What a launch knows beforehand. Each fact makes the kernel faster: that a block is one tile, so
/// that the inner loop has one multiplication between a table entry and an address; that each row
/// has one query token; how many operands of query columns a thread block has; and how many thread
/// blocks a cluster has.
template <bool kOneTile_, bool kOneToken_, int kOperands_, int kCluster_>
struct LaunchMode {
  static constexpr int kOperands = kOperands_;  ///< eight query columns each
  static constexpr bool kOneTile = kOneTile_;
  static constexpr bool kOneToken = kOneToken_;
  static constexpr int kCluster = kCluster_;
};

/// The state of a thread block. `Mode` is a LaunchMode. The thread blocks of a cluster work on the
/// same item; its units are dealt to the warps of all of them.
template <class T, class S, int D, int W, class Mode>
struct Kernel {
  using Tile = decode::Tile<S, D>;
  using Math = typename Tile::Math;
  static constexpr int kTiles = Tile::kTilesAtOnce;
  static constexpr int kUnitTokens = kTiles * kTileTokens;
  static constexpr int kOperands = Mode::kOperands;
  static constexpr int kChunkColumns = kOperands * kColumns;
  static constexpr int kCluster = Mode::kCluster;
  static constexpr int kUnitStep = kCluster * W;  ///< from a warp's unit to its next one
  static_assert(kCluster <= kMostOfDecodeCluster);
  using Accumulator = decode::Accumulator<D, kOperands>;
  const DecodeParams& p;
  const DecodeWorkspace w;
  const DecodeConstants constants;
  Shared<D, W, kOperands>& shared;
  const int thread;
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int group = opaque(p.limits.num_q_heads / p.limits.num_kv_heads);
  const int chunks = opaque(w.chunks);
  const int heads = p.limits.num_kv_heads * chunks;

  __device__ char* workspace() const { return static_cast<char*>(opaque(p.workspace)); }
  __device__ DecodeHeader* header() const { return reinterpret_cast<DecodeHeader*>(workspace()); }
  __device__ const DecodePart* parts() const {
    return reinterpret_cast<const DecodePart*>(workspace() + w.parts);
  }
  /// Returns the counters of a slot: arrived parts of the group, and arrived groups of the item. In
  /// a cluster each thread block has counters of its own.
  __device__ int* counters(std::int64_t slot) const {
    return reinterpret_cast<int*>(workspace() + w.counters) + (slot * kCluster + rank()) * 2;
  }
  /// Returns the index of the thread block in its cluster.
  __device__ static int rank() { return kCluster > 1 ? rank_in_cluster() : 0; }
  /// Returns the warp's first unit of an item.
  __device__ int first_unit(const WorkItem& item) const {
    return item.part.first_unit + rank() * W + warp;
  }
  __device__ std::int64_t slot(const WorkItem& item, int part) const {
    return (static_cast<std::int64_t>(item.part.first_slot) + part) * heads + item.head * chunks +
           item.chunk;
  }
  /// Returns where a part, or with `of_group` a group, that begins at a slot leaves its maxima and
  /// sums.
  __device__ float2* max_sum(std::int64_t slot, bool of_group = false) const {
    return reinterpret_cast<float2*>(workspace() + w.max_sum) +
           (slot * 2 + of_group) * kChunkColumns;
  }
  __device__ float* outputs(std::int64_t slot) const {
    return reinterpret_cast<float*>(workspace() + w.outputs) + slot * kChunkColumns * D;
  }

  /// An element of a result is four neighbouring dims of a query column: their sums, which are not
  /// normalised, with the maximum and the sum of the column.
  struct Merged {
    float maximum;
    float sum;
    float4 o;
  };
  static constexpr int kElements = D / 4;  ///< of a column
  /// The elements of an item's result that this thread block combines.
  struct Share {
    int begin;
    int end;
  };
  __device__ Share share_of(const WorkItem& item) const {
    const int all = min(kChunkColumns, num_columns(item) - item.chunk * kChunkColumns) * kElements;
    if constexpr (kCluster == 1) return {0, all};
    const int most = (all + kCluster - 1) / kCluster;
    return {min(all, rank() * most), min(all, (rank() + 1) * most)};
  }

  /// Partial results to combine: of parts first, first + step, .. of an item.
  struct Partials {
    int first;
    int step;
    int count;
    bool of_groups;  ///< results of the groups that begin there, not of the parts
  };

  /// The place of a work item. `index` may be past the last item. The heads of one part are
  /// neighbours, so thread blocks that run together read neighbouring bytes.
  struct Origin {
    const DecodePart* part;
    int head;
    int chunk;
  };
  __device__ Origin origin_of(int index) const {
    const int at = index / heads;
    const int within = index - at * heads;
    return {parts() + min(at, w.max_parts - 1), within / chunks, within % chunks};
  }
  __device__ WorkItem item_at(int index) const {
    const Origin origin = origin_of(index);
    struct Words {
      int4 low;
      int4 high;
    };
    const auto* words = reinterpret_cast<const int4*>(origin.part);
    const auto part = std::bit_cast<DecodePart>(Words{words[0], words[1]});
    return {part, origin.head, origin.chunk};
  }
  /// Starts to copy a work item into shared memory. The copy is complete after cp.async.wait_all.
  __device__ void fetch_item(WorkItem& item, int index) const {
    const Origin origin = origin_of(index);
    item.head = origin.head;
    item.chunk = origin.chunk;
    const auto* from = reinterpret_cast<const char*>(origin.part);
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(&item.part));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to + 16), "l"(from + 16)
                 : "memory");
  }
  __device__ const BlockId* table(const WorkItem& item) const {
    return p.block_tables + item.part.table_row * p.table_stride;
  }
  /// Returns the table entry of a tile. It is exact for tile < 2^32 / tiles_per_block. The inner
  /// loop then has no branch and no division.
  __device__ unsigned table_index(int tile) const {
    if constexpr (Mode::kOneTile) return static_cast<unsigned>(tile);
    return static_cast<unsigned>(static_cast<unsigned>(tile) * constants.block_of_tile >> 32);
  }
  __device__ int block_of(const BlockId* table, int tile) const {
    return table[table_index(tile)].value;
  }
  /// Returns the bytes from a plane's base to a tile.
  __device__ std::int64_t tile_offset(int block, int head, int tile) const {
    const std::int64_t at = block * p.block_stride + head * p.head_stride;
    if constexpr (Mode::kOneTile) return at;
    const unsigned within = tile - table_index(tile) * constants.tiles_per_block;
    return at + within * Tile::kBytes;
  }
  /// The place of a column in q, out and lse.
  struct Place {
    int token;  ///< query token
    int head;   ///< query head
  };
  /// Returns a column's place. `column` may be past the last.
  __device__ Place place_of(const WorkItem& item, int column) const {
    return {item.part.first_q + column / group, item.head * group + column % group};
  }
  /// Returns the bytes from the begin of q or out to a place's dim 0.
  __device__ static std::int64_t bytes_to(const Place& place, std::int64_t token_stride) {
    return place.token * opaque(token_stride) + place.head * (D * 2);
  }
  /// Returns the query columns of the row and KV head. Later columns of a chunk are padding.
  __device__ int num_columns(const WorkItem& item) const { return q_len(item) * group; }
  /// The query tokens of the item's row.
  __device__ static int q_len(const WorkItem& item) {
    return Mode::kOneToken ? 1 : static_cast<int>(item.part.q_len);
  }
  /// Leaves no units to an item whose columns are all padding, because its row has fewer query
  /// tokens than others.
  __device__ void empty_padding(WorkItem& item) const {
    if (item.chunk * kChunkColumns >= num_columns(item)) item.part.last_unit = item.part.first_unit;
  }
  /// Returns one past the last position that a column sees.
  __device__ int limit_of(const WorkItem& item, int column) const {
    if constexpr (Mode::kOneToken) return item.part.seq_len;
    const int tokens = q_len(item);
    return item.part.seq_len - tokens + min(column / group, tokens - 1) + 1;
  }

  /// Returns the scale of this head's K or V.
  __device__ float head_scale(const float* scales, const WorkItem& item) const {
    if (scales == nullptr) return 1.0F;
    return scales[p.scales.per_head ? item.head : 0];
  }

  /// Returns the first token that some query token of the row sees.
  __device__ int first_seen(const WorkItem& item) const {
    return p.window_tokens == 0 ? 0 : max(0, limit_of(item, 0) - p.window_tokens);
  }
  /// Returns tile `u` of a unit. Where no query token sees a token of that tile, it is the row's
  /// nearest tile that one sees, because the tables need not have other entries. Only the first
  /// unit of a row begins before its first such tile; a warp's later units never do.
  template <bool kFirst>
  __device__ int tile_at(const WorkItem& item, int unit, int u) const {
    if constexpr (kTiles == 1) return unit;
    const int tile = min(unit * kTiles + u, (item.part.seq_len - 1) / kTileTokens);
    return kFirst ? max(tile, first_seen(item) / kTileTokens) : tile;
  }

  __device__ bool reads_new_tokens(const WorkItem& item) const;
  template <bool kFirst>
  __device__ void find_tiles(std::int64_t (&offsets)[kTiles], const int (&blocks)[kTiles],
                             const WorkItem& item, int unit) const;
  template <bool kFirst>
  __device__ void find_blocks(int (&blocks)[kTiles], const WorkItem& item, int unit) const;
  __device__ void load_key(Tile (&tiles)[kTiles], const std::int64_t (&offsets)[kTiles]) const;
  __device__ void load_value(Tile (&tiles)[kTiles], const std::int64_t (&offsets)[kTiles]) const;
  __device__ void load_first(Tile (&tiles)[kTiles], int (&next_blocks)[kTiles],
                             const WorkItem& item) const;
  __device__ void prefetch_second(const int (&blocks)[kTiles], const WorkItem& item) const;
  __device__ void load_query(float (&unit_logit)[kOperands][2], const WorkItem& item) const;
  __device__ void narrow_query(unsigned (&q)[Tile::kSteps][2], float (&unit_logit)[2]) const;
  __device__ void mask(float (&s)[kOperands][4], Tile& tile, const WorkItem& item,
                       int first_token) const;
  __device__ unsigned seen_slots(const WorkItem& item, int query, int first_token) const;
  __device__ void weigh_apart(Accumulator& acc, const Tile (&tiles)[kTiles],
                              const unsigned (&weights)[kTiles][kOperands][2], const WorkItem& item,
                              int unit) const;
  __device__ void multiply_queries(float (&s)[kTiles][kOperands][4], const Tile (&tiles)[kTiles],
                                   const float (&unit_logit)[kOperands][2]) const;
  __device__ void stream(Accumulator& acc, Tile (&tiles)[kTiles], int (&next_blocks)[kTiles],
                         const WorkItem& item, bool takes, int& taken) const;
  __device__ void stage(const Accumulator& acc) const;
  __device__ Merged merge_warps(int column, int dim) const;
  __device__ void merge_block(const WorkItem& item) const;
  __device__ void stage_block(const WorkItem& item) const;
  __device__ void merge_cluster(const WorkItem& item) const;
  __device__ void store_partial(std::int64_t slot, bool of_group, int column, int dim,
                                bool is_first, const Merged& result) const;
  template <int kAtOnce>
  __device__ void combine_by(const WorkItem& item, const Partials& from, bool is_group) const;
  __device__ void combine(const WorkItem& item, const Partials& from, bool is_group) const;
  __device__ void write_output(const WorkItem& item, int column, int dim,
                               const Merged& result) const;
  __device__ void arrive(const WorkItem& item) const;
  __device__ void finish(WorkItem (&items)[2], int turn, bool more, int& next) const;
  __device__ bool is_last_of(int* arrived, int expected) const;
  /// Takes a work item that no thread block has taken yet, and returns its index.
  __device__ int take() const { return num_turns() + atomicAdd(&header()->next_work, 1); }
  /// Returns the work items that all thread blocks or clusters do at once.
  __device__ static int num_turns() { return static_cast<int>(gridDim.x) / kCluster; }
  /// Counts this thread block as finished. The last one resets the counters for the next launch.
  __device__ void leave() const {
    if (thread != 0) return;
    if (atomicAdd(&header()->blocks_done, 1) < static_cast<int>(gridDim.x) - 1) return;
    header()->next_work = 0;
    header()->blocks_done = 0;
  }
};

}  // namespace kvarena::kernels::decode

#include "kernels/decode/decode_combine.cuh"
#include "kernels/decode/decode_stream.cuh"
