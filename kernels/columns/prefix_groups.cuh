#pragma once

/// @file
/// The choice of groups from what the search found, and their order. One thread block makes it.
/// Included by prefix_find.cuh.

#include "kernels/columns/prefix_search.cuh"

namespace kvarena::kernels::find_prefixes {

/// Returns the bin of a length: 0 for those that are too short to share, then four for each power
/// of 2.
__device__ inline int bin_of(int tokens) {
  static_assert(kLeastTokens == 1 << 8);
  if (tokens < kLeastTokens) return 0;
  const int power = 31 - __clz(tokens);
  return min(kBins - 1, 1 + (power - 8) * 4 + (tokens >> (power - 2) & 3));
}

/// Returns what it costs that a row has an own part and partial results, in tokens. All of its
/// tokens count as not shared: those that are save as much more.
__device__ inline int cost_of(const Search& s, int i) {
  constexpr int kMostTokens = 1 << 18;  // the costs of all rows stay below 2^31
  const int own = min(s.limit[i], kMostTokens / s.p.block_size) * s.p.block_size;
  return kTokensOfColumn * s.group() * s.query_tokens(i) + s.p.member_tokens +
         own / 16 * s.p.own_sixteenths;
}

/// Chooses how many tokens leader `i` shares, or that only groups within its group share theirs.
/// `members` are the `count` rows that have it as their leader. Lane `b` of the warp tries the
/// group of all rows of bin `b` and above. It shares the shortest length of these bins.
__device__ inline void choose_length(const Search& s, int round, int i, const int* members,
                                     int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Bins& bins = s.shared.bins[threadIdx.x / 32];
  bins.number[lane] = 0;
  bins.cost[lane] = 0;
  bins.least[lane] = 0x7fffffff;
  bins.inner[lane] = 0;
  __syncwarp();
  for (int m = lane; m < count; m += 32) {
    const int tokens = __ldcg(s.depth_in(round, members[m])) * s.p.block_size;
    const int bin = bin_of(tokens);
    atomicAdd(&bins.number[bin], 1);
    atomicAdd(&bins.cost[bin], cost_of(s, members[m]));
    atomicMin(&bins.least[bin], tokens);
    atomicAdd(&bins.inner[bin], static_cast<unsigned long long>(s.best[members[m]]));
  }
  __syncwarp();
  long long number = bins.number[lane];
  long long cost = bins.cost[lane];
  auto inner = static_cast<long long>(bins.inner[lane]);  // of bins up to this one
  for (int d = 1; d < 32; d *= 2) {
    const long long more = __shfl_down_sync(~0U, number, d);
    const long long more_cost = __shfl_down_sync(~0U, cost, d);
    const long long below = __shfl_up_sync(~0U, inner, d);
    number += lane + d < 32 ? more : 0;
    cost += lane + d < 32 ? more_cost : 0;
    inner += lane >= d ? below : 0;
  }
  const long long without = __shfl_sync(~0U, inner, 31);
  const bool is_tried = lane > 0 && bins.number[lane] > 0;
  const int own = s.p.own_sixteenths;  // of the leader too, which reads the prefix
  const long long saved = (number * (s.p.saved_sixteenths + own) + own) * bins.least[lane] / 16;
  const long long gain = is_tried ? saved - cost - cost_of(s, i) - s.p.group_tokens : 0;
  long long score = gain > 0 ? gain + inner - static_cast<long long>(bins.inner[lane]) : 0;
  int length = gain > 0 ? bins.least[lane] : 0;
  for (int d = 16; d > 0; d /= 2) {
    const long long its = __shfl_xor_sync(~0U, score, d);
    const int its_length = __shfl_xor_sync(~0U, length, d);
    if (its > score || (its == score && its_length > length)) {
      score = its;
      length = its_length;
    }
  }
  if (lane == 0) {
    s.best[i] = max(score, without);
    s.pick[i] = score > without ? length : 0;
  }
  __syncwarp();
}

/// Replaces counts by the sums of the counts before each.
__device__ inline void sum_up(const Search& s, const int* counts, int* sums) {
  int before = 0;
  for (int base = 0; base < s.num; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    int first = 0;
    int all = 0;
    Scan(s.shared.scan).ExclusiveSum(i < s.num ? counts[i] : 0, first, all);
    if (i < s.num) sums[i] = before + first;
    before += all;
    __syncthreads();
  }
}

/// Chooses the lengths of all leaders, innermost groups first.
__device__ inline void choose_lengths(const Search& s, int rounds) {
  const int thread = static_cast<int>(threadIdx.x);
  int* const count = s.table;
  int* const members = s.table + s.num;
  int* const end = s.id;
  for (int i = thread; i < s.num; i += kThreads) {
    s.best[i] = 0;
    s.pick[i] = 0;
  }
  for (int round = rounds - 1; round >= 0; --round) {
    for (int i = thread; i < s.num; i += kThreads) count[i] = 0;
    __syncthreads();
    const auto for_each_follower = [&](auto&& use) {
      for (int i = thread; i < s.num; i += kThreads) {
        const int leader = *s.leader_in(round, i);
        if (leader >= 0 && leader != i) use(i, leader);
      }
      __syncthreads();
    };
    for_each_follower([&](int, int leader) { atomicAdd(&count[leader], 1); });
    sum_up(s, count, end);
    for_each_follower([&](int i, int leader) { members[atomicAdd(&end[leader], 1)] = i; });
    for (int i = thread / 32; i < s.num; i += kWarps) {
      if (count[i] > 0) choose_length(s, round, i, members + end[i] - count[i], count[i]);
    }
    __syncthreads();
  }
}

/// Assigns each row to the outermost group that shares, as s.leader; -1: none.
__device__ inline void assign_groups(const Search& s, int rounds) {
  for (int i = static_cast<int>(threadIdx.x); i < s.num; i += kThreads) {
    int group = -1;
    for (int round = 0; round < rounds && group < 0; ++round) {
      const int leader = *s.leader_in(round, i);
      if (leader < 0 || s.pick[leader] == 0) continue;
      const int tokens = __ldcg(s.depth_in(round, i)) * s.p.block_size;
      if (leader == i || tokens >= s.pick[leader]) group = leader;
    }
    s.leader[i] = group;
  }
  __syncthreads();
}

/// The order of the members of all groups. The arrays are scratch of the search.
struct Order {
  int* member;       // [number] row of each place
  int* most_tokens;  // [num] of a leader: query tokens of the member with the most
  int* first_token;  // [num] of a leader: query tokens of the groups before
  int number;
};

/// Orders the members: groups by their leaders, rows of a group as in the batch. Groups whose query
/// tokens exceed the room for partial results share nothing.
__device__ inline Order order_members(const Search& s) {
  const int thread = static_cast<int>(threadIdx.x);
  int* const count = s.table;
  int* const tokens = s.table + s.num;
  int* const place = s.depth;
  Order order{s.limit, s.id, reinterpret_cast<int*>(s.best), 0};
  for (int i = thread; i < s.num; i += kThreads) count[i] = tokens[i] = order.most_tokens[i] = 0;
  __syncthreads();
  for (int i = thread; i < s.num; i += kThreads) {
    if (s.leader[i] < 0) continue;
    const int q_len = s.query_tokens(i);
    atomicAdd(&count[s.leader[i]], 1);
    atomicAdd(&tokens[s.leader[i]], q_len);
    atomicMax(&order.most_tokens[s.leader[i]], q_len);
  }
  __syncthreads();
  sum_up(s, count, place);
  sum_up(s, tokens, order.first_token);
  for (int i = thread; i < s.num; i += kThreads) {
    const int leader = s.leader[i];
    if (leader >= 0 && order.first_token[leader] + tokens[leader] > s.max_tokens) s.leader[i] = -1;
  }
  for (int base = 0; base < s.num; base += kThreads) {
    __syncthreads();
    const int i = base + thread;
    order.number += __syncthreads_count(i < s.num && s.leader[i] >= 0 ? 1 : 0);
  }
  for (int base = 0; thread < 32 && base < s.num; base += 32) {
    const int i = base + thread;
    const int leader = i < s.num ? s.leader[i] : -1;
    const unsigned peers = __match_any_sync(~0U, leader);
    const unsigned before = peers & ((1U << thread) - 1);
    const int at = leader >= 0 ? place[leader] + __popc(before) : 0;
    __syncwarp();
    if (leader >= 0) order.member[at] = i;
    if (leader >= 0 && before == 0) place[leader] += __popc(peers);
    __syncwarp();
  }
  __syncthreads();
  return order;
}

/// Writes members, tiles and query tokens. A member begins a tile when its first token is in the
/// next run of as many tokens as a member may begin at.
__device__ inline void write_plan(const Search& s, const Order& order, char* memory,
                                  const PrefixPlan& plan) {
  auto* const tiles = reinterpret_cast<PrefixTile*>(memory + plan.tiles);
  auto* const members = reinterpret_cast<PrefixMember*>(memory + plan.members);
  auto* const tokens = reinterpret_cast<int*>(memory + plan.tokens);
  int token = 0;
  int tile = 0;
  for (int base = 0; base < order.number; base += kThreads) {
    const int at = base + static_cast<int>(threadIdx.x);
    const bool is_in = at < order.number;
    const int i = is_in ? order.member[at] : 0;
    const int leader = s.leader[i];
    const ColumnsRow r = is_in ? load_row(s.p, s.row[i]) : ColumnsRow{};
    int first = 0;
    int all = 0;
    Scan(s.shared.scan).ExclusiveSum(r.q_len, first, all);
    __syncthreads();
    first += token;
    const int in_group = is_in ? first - order.first_token[leader] : 0;
    const int run = is_in ? s.columns / s.group() - order.most_tokens[leader] + 1 : 1;
    const int previous = is_in && in_group > 0 ? s.query_tokens(order.member[at - 1]) : 0;
    const bool begins = is_in && (in_group == 0 || in_group / run != (in_group - previous) / run);
    const bool ends =
        is_in && (at + 1 == order.number || s.leader[order.member[at + 1]] != leader ||
                  (in_group + r.q_len) / run != in_group / run);
    int begun = 0;
    int all_begun = 0;
    Scan(s.shared.scan).InclusiveSum(begins ? 1 : 0, begun, all_begun);
    const int its = tile + begun - 1;
    if (is_in) {
      members[at] = {s.row[i], its, first};
      for (int j = 0; j < r.q_len; ++j) tokens[first + j] = r.q_begin + j;
      s.p.shared_tokens[s.row[i]] = s.pick[leader];
    }
    if (begins) {
      tiles[its].table_row = table_row_of(s.p, s.row[i]);
      tiles[its].shared_tokens = s.pick[leader];
      tiles[its].first_member = at;
      tiles[its].first_token = first;
    }
    if (ends) {
      tiles[its].end_member = at + 1;
      tiles[its].end_token = first + r.q_len;
    }
    token += all;
    tile += all_begun;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *reinterpret_cast<PrefixHeader*>(memory + plan.header) = {tile, order.number};
  }
}

}  // namespace kvarena::kernels::find_prefixes
