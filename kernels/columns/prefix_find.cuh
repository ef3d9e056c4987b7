#pragma once

/// @file
/// The search for the shared prefixes of a step, as one cluster makes it. Included by
/// shared_prefixes.cu, and by a test that runs it on the CPU.

#include "kernels/columns/prefix_groups.cuh"

#include <algorithm>
#include <bit>

namespace kvarena::kernels::find_prefixes {

/// The sizes of a search, which the host computes.
struct SearchSize {
  int most;        ///< rows that are looked at
  int table_size;  ///< a power of 2
  int columns;     ///< of a thread block of the attention kernel
  int max_tokens;  ///< of all members
};

/// Returns the sizes for a step.
inline SearchSize search_size(const FindPrefixesParams& p) noexcept {
  const int most = std::max(1, std::min(p.num_rows, p.limits.shared_rows));
  return {most, static_cast<int>(std::bit_ceil(2 * static_cast<unsigned>(most))),
          columns_shape(p.limits).columns, max_shared_tokens(p.limits)};
}
/// Returns the integers of shared memory that a thread block needs, besides Shared.
inline int numbers_of(const SearchSize& size) noexcept {
  constexpr int kNumbersOfRow = 8;
  return kNumbersOfRow * size.most + size.table_size;
}

/// Finds the shared prefixes of a step. All threads of the cluster call it. `memory` is shared
/// memory, 8-byte aligned.
__device__ inline void search_step(const FindPrefixesParams& p, const PrefixPlan& plan,
                                   const SearchSize& size, Shared& shared, int* memory) {
  auto* const best = reinterpret_cast<long long*>(memory);
  const int most = size.most;
  int* const rows = memory + 2 * most;
  auto* const to = static_cast<char*>(p.prefixes);
  Search s{p,
           shared,
           size.columns,
           size.max_tokens,
           0,
           size.table_size,
           rank_in_cluster(),
           rows,
           rows + most,
           rows + 2 * most,
           rows + 3 * most,
           rows + 4 * most,
           rows + 5 * most,
           best,
           rows + 6 * most,
           reinterpret_cast<int*>(to + plan.leaders),
           reinterpret_cast<int*>(to + plan.depths)};
  list_rows(s, most);
  int rounds = 0;
  while (rounds < kPrefixRounds && find_leaders(s, rounds)) compare_rows(s, rounds++);
  sync_cluster();  // all of shared_tokens has been cleared
  if (s.rank != 0) return;
  choose_lengths(s, rounds);
  assign_groups(s, rounds);
  write_plan(s, order_members(s), to, plan);
}

}  // namespace kvarena::kernels::find_prefixes
