#pragma once

/// @file
/// The search for rows whose tables begin with the same blocks. The thread blocks of one cluster
/// make it together: each finds the same leaders in its own shared memory, and they share the
/// comparison of tables. In the first round, rows with the same first block have the same leader,
/// and each row is compared with its leader. Rows that leave their leader at the same place with
/// the same block are a group within the group; the next round compares them from there on.
/// A number of a row is its index among the rows that are looked at. Included by
/// prefix_find.cuh.

#include "kernels/columns/columns_rows.cuh"
#include "kernels/columns/prefix_plan.h"
#include "kernels/columns/shared_prefixes.h"
#include "kernels/common/cluster.cuh"

#include <cub/block/block_scan.cuh>

namespace kvarena::kernels::find_prefixes {

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kBlocks = 8;          // of the cluster
inline constexpr int kChunk = 512;         // entries that a warp compares at a time
inline constexpr int kLeastTokens = 256;   // of a shared prefix
inline constexpr int kTokensOfColumn = 4;  // a column's two partial results, written and read, have
                                           // as many bytes as K and V of these tokens
inline constexpr int kBins = 32;           // of prefix lengths
using Scan = cub::BlockScan<int, kThreads>;

/// The lengths of the members of a leader, counted by bins of growing length.
struct Bins {
  int number[kBins];
  int cost[kBins];
  int least[kBins];
  unsigned long long inner[kBins];  // what groups within the group save, in tokens
};

struct Shared {
  Scan::TempStorage scan;
  Bins bins[kWarps];
  int most;
};

/// The inputs and what all functions use. All arrays but the last two are in shared memory.
struct Search {
  const FindPrefixesParams& p;
  Shared& shared;
  int columns;      // of a thread block of the attention kernel
  int max_tokens;   // of all members
  int num;          // rows that are looked at
  int table_size;   // a power of 2
  int rank;         // of this thread block in the cluster
  int* row;         // [num] of the batch
  int* limit;       // [num] blocks that may be shared: full ones, older than the query tokens
  int* leader;      // [num] in this round; -1: the row has no part in it
  int* depth;       // [num] blocks in common with the leader
  int* id;          // [num] the next block, or scratch
  int* pick;        // [num] of a leader: the tokens that its group shares, 0: none; or scratch
  long long* best;  // [num] of a leader: what its rows save, in tokens
  int* table;       // [table_size] rows by the hash of what they must have in common, or scratch
  int* leaders;     // [kPrefixRounds, shared_rows] global memory
  int* depths;      // [kPrefixRounds, shared_rows] global memory

  __device__ int group() const { return p.limits.num_q_heads / p.limits.num_kv_heads; }
  __device__ const BlockId* blocks(int i) const {
    return p.block_tables + table_row_of(p, row[i]) * p.table_stride;
  }
  __device__ int entry(int i, int at) const {
    return __ldg(reinterpret_cast<const int*>(blocks(i)) + at);
  }
  __device__ int* depth_in(int round, int i) const {
    return depths + round * p.limits.shared_rows + i;
  }
  __device__ int* leader_in(int round, int i) const {
    return leaders + round * p.limits.shared_rows + i;
  }
  __device__ int query_tokens(int i) const { return load_row(p, row[i]).q_len; }
  __device__ bool is_follower(int i) const { return leader[i] >= 0 && leader[i] != i; }
};

/// Lists the rows that may share a prefix, and clears the output of all rows.
__device__ inline void list_rows(Search& s, int most) {
  const FindPrefixesParams& p = s.p;
  int listed = 0;
  for (int base = 0; base < p.num_rows; base += kThreads) {
    const int row = base + static_cast<int>(threadIdx.x);
    const bool is_row = row < p.num_rows;
    const ColumnsRow r = is_row ? load_row(p, row) : ColumnsRow{};
    const int limit = max(0, r.seq_len - r.q_len) / p.block_size;
    const bool is_in = is_row && p.window_tokens == 0 && r.q_len >= 1 &&
                       r.q_len <= p.limits.q_len && r.q_len * s.group() <= s.columns &&
                       limit >= (kLeastTokens + p.block_size - 1) / p.block_size &&
                       table_row_of(p, row) >= 0;
    if (is_row && base / kThreads % kBlocks == s.rank) p.shared_tokens[row] = 0;
    int at = 0;
    int all = 0;
    Scan(s.shared.scan).ExclusiveSum(is_in ? 1 : 0, at, all);
    at += listed;
    if (is_in && at < most) {
      s.row[at] = row;
      s.limit[at] = limit;
      s.leader[at] = 0;
      s.depth[at] = 0;
    }
    listed += all;
    __syncthreads();
  }
  s.num = min(listed, most);
}

/// Returns the place in the table of a row that looks for its leader: that of the rows with the
/// same leader and depth in the round before, and the same next block.
__device__ inline int place_of(const Search& s, int i) {
  const auto mix = [](unsigned x, unsigned y) {
    unsigned h = (x ^ y * 0x9E3779B1U) * 0x85EBCA6BU;
    return h ^ h >> 15;
  };
  const auto number = [](int x) { return static_cast<unsigned>(x); };
  unsigned at = mix(mix(number(s.id[i]), number(s.depth[i])), number(s.leader[i]));
  while (true) {
    at &= number(s.table_size) - 1;
    const int other = atomicCAS(&s.table[at], -1, i);
    if (other == -1) break;
    if (s.id[other] == s.id[i] && s.depth[other] == s.depth[i] && s.leader[other] == s.leader[i]) {
      atomicMin(&s.table[at], i);
      break;
    }
    ++at;
  }
  return static_cast<int>(at);
}

/// Finds the leader of each row: the first one with the same next block. Returns whether a row has
/// another row as its leader.
__device__ inline bool find_leaders(const Search& s, int round) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < s.table_size; i += kThreads) s.table[i] = -1;
  for (int i = thread; i < s.num; i += kThreads) {
    const bool is_in = round == 0 || (s.is_follower(i) && s.depth[i] < s.limit[i]);
    s.id[i] = is_in ? s.entry(i, s.depth[i]) : 0;
    if (!is_in) s.leader[i] = -1;
  }
  __syncthreads();
  for (int i = thread; i < s.num; i += kThreads) {
    if (s.leader[i] >= 0) s.pick[i] = place_of(s, i);
  }
  __syncthreads();
  bool any = false;
  for (int i = thread; i < s.num; i += kThreads) {
    if (s.leader[i] >= 0) s.leader[i] = s.table[s.pick[i]];
    any = any || s.is_follower(i);
    if (s.rank == 0) *s.leader_in(round, i) = s.leader[i];
  }
  return __syncthreads_or(any ? 1 : 0) != 0;
}

/// Returns the first of entries begin .. end - 1 in which two tables differ, or `end`. A warp calls
/// it.
__device__ inline int first_difference(const BlockId* x, const BlockId* y, int begin, int end) {
  constexpr int kAtOnce = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto load = [&](const BlockId* table, int at) {
    return at < end ? __ldg(reinterpret_cast<const int*>(table) + at) : 0;
  };
  for (int base = begin; base < end; base += kAtOnce * 32) {
    int a[kAtOnce];
    int b[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      a[u] = load(x, base + u * 32 + lane);
      b[u] = load(y, base + u * 32 + lane);
    }
    int first = end;
#pragma unroll
    for (int u = kAtOnce - 1; u >= 0; --u) {
      if (a[u] != b[u]) first = base + u * 32 + lane;
    }
    first = __reduce_min_sync(~0U, first);
    if (first < end) return first;
  }
  return end;
}

/// Compares each row with its leader from the depth of the round before on. The cluster's warps
/// take chunks of all rows, and a chunk with a difference lowers the row's depth.
__device__ inline void compare_rows(const Search& s, int round) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto end_of = [&](int i) { return min(s.limit[i], s.limit[s.leader[i]]); };
  if (thread == 0) s.shared.most = 0;
  __syncthreads();
  for (int i = thread; i < s.num; i += kThreads) {
    if (s.is_follower(i)) atomicMax(&s.shared.most, end_of(i) - s.depth[i]);
    if (i % kBlocks == s.rank) *s.depth_in(round, i) = s.is_follower(i) ? end_of(i) : 0;
  }
  __syncthreads();
  sync_cluster();
  const int pairs = (s.shared.most + kChunk - 1) / kChunk * s.num;
  for (int pair = s.rank * kWarps + thread / 32; pair < pairs; pair += kBlocks * kWarps) {
    const int i = pair % s.num;
    if (!s.is_follower(i)) continue;
    const int begin = s.depth[i] + pair / s.num * kChunk;
    const int end = min(end_of(i), begin + kChunk);
    if (begin >= end) continue;
    const int first = first_difference(s.blocks(i), s.blocks(s.leader[i]), begin, end);
    if (first < end && thread % 32 == 0) atomicMin(s.depth_in(round, i), first);
  }
  sync_cluster();
  for (int i = thread; i < s.num; i += kThreads) s.depth[i] = __ldcg(s.depth_in(round, i));
  __syncthreads();
}

}  // namespace kvarena::kernels::find_prefixes
