#pragma once

/// @file
/// The rows of a batch as the schedule of the columns kernel and the search for shared prefixes
/// read them.

#include "kernels/columns/columns_limits.h"

namespace kvarena::kernels {

/// The length and query tokens of a row.
struct ColumnsRow {
  int q_begin;
  int q_len;
  int seq_len;
};

/// Returns a row of a batch. Params is ColumnsScheduleParams or FindPrefixesParams.
template <class Params>
__device__ inline ColumnsRow load_row(const Params& p, int row) {
  ColumnsRow r{};
  if (p.q_offsets == nullptr) {
    r.q_len = p.limits.q_len;
    r.q_begin = static_cast<int>(p.first_q + static_cast<long long>(row) * r.q_len);
  } else {
    r.q_begin = static_cast<int>(p.q_offsets[row]);
    r.q_len = static_cast<int>(p.q_offsets[row + 1] - p.q_offsets[row]);
  }
  r.seq_len = p.seq_lens[row];
  return r;
}

/// Returns the runs of a row.
__device__ inline int runs_of(const ColumnsRow& r) {
  return (r.q_len + kRunTokens - 1) / kRunTokens;
}
/// Returns run `run` of a row, as a row.
__device__ inline ColumnsRow run_of_row(const ColumnsRow& r, int run) {
  const int first = run * kRunTokens;
  const int count = min(kRunTokens, r.q_len - first);
  return {r.q_begin + first, count, r.seq_len - r.q_len + first + count};
}

/// Returns the table row of a row; -1: it is skipped.
template <class Params>
__device__ inline int table_row_of(const Params& p, int row) {
  return p.row_slots == nullptr ? row : p.row_slots[row];
}

}  // namespace kvarena::kernels
