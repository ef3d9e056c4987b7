#pragma once

/// @file
/// A step of random rows for the schedule of the columns kernel, and what its segments must do:
/// found in plain loops, without the order in which a schedule cuts.

#include "kernels/columns/columns.h"
#include "kernels/columns/columns_workspace.h"
#include "kernels/columns/prefix_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

namespace kvarena::test {

/// Memory of the device, on the host.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::int64_t size = 0) : bytes_(static_cast<std::size_t>(size) + 256) {
    std::ranges::fill(bytes_, std::byte{0x7F});  // as a number, far beyond every array
  }
  std::byte* data() {
    return bytes_.data() + (256 - reinterpret_cast<std::uintptr_t>(bytes_.data()) % 256) % 256;
  }
  template <class T>
  T* at(std::int64_t offset) {
    return reinterpret_cast<T*>(data() + offset);
  }

 private:
  std::vector<std::byte> bytes_;
};

/// The rows of a step. Row r has query tokens q_offsets[r] .. q_offsets[r + 1] - 1.
struct ColumnsScheduleCase {
  kernels::ColumnsLimits limits;
  std::int32_t max_q_len = 0;
  std::int32_t window_tokens = 0;
  bool fixed_parts = false;
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> row_slots;
  std::vector<std::int64_t> q_offsets = {0};
  std::vector<std::int32_t> shared_tokens;  ///< empty: no row shares a prefix
  std::vector<kernels::PrefixTile> tiles;
  std::vector<kernels::PrefixMember> members;

  std::int32_t num_rows() const { return static_cast<std::int32_t>(seq_lens.size()); }
  std::int32_t group() const { return limits.num_q_heads / limits.num_kv_heads; }
  std::int32_t q_len(std::size_t row) const {
    return static_cast<std::int32_t>(q_offsets[row + 1] - q_offsets[row]);
  }
  bool is_taken(std::size_t row) const {
    return q_len(row) >= 1 && q_len(row) <= std::max(max_q_len, limits.q_len) &&
           row_slots[row] >= 0;
  }
  /// The parameters without a workspace and prefixes.
  kernels::ColumnsScheduleParams params() const {
    kernels::ColumnsScheduleParams p;
    p.limits = limits;
    p.max_q_len = max_q_len;
    p.seq_lens = seq_lens.data();
    p.q_offsets = q_offsets.data();
    p.row_slots = row_slots.data();
    p.num_rows = num_rows();
    p.window_tokens = window_tokens;
    p.shared_tokens = shared_tokens.empty() ? nullptr : shared_tokens.data();
    p.fixed_parts = fixed_parts;
    return p;
  }
};

/// An item: the segments of `columns` from `column_group` on see tokens first_token .. seq_len - 1.
struct ColumnsWork {
  std::int32_t q_begin;
  std::int32_t q_len;  ///< of a tile: 0
  std::int32_t head;
  std::int32_t column_group;
  std::int32_t columns;  ///< of the row or tile
  std::int32_t table_row;
  std::int32_t first_token;
  std::int32_t seq_len;
  std::int32_t member = -1;  ///< its index

  bool is_tile() const { return q_len == 0; }
  auto key() const { return std::tuple(is_tile(), q_begin, head, column_group); }
};

/// Adds the items of query tokens q_begin .. q_begin + q_len - 1 of a row.
inline void add_items(const ColumnsScheduleCase& c, ColumnsWork work,
                      std::vector<ColumnsWork>& all) {
  const std::int32_t slab = kernels::columns_shape(c.limits).slab_tokens;
  const std::int32_t block = kernels::columns_shape(c.limits).columns;
  const std::int32_t window = c.window_tokens;
  work.columns = work.q_len * c.group();
  if (work.member < 0 && window > 0) {
    work.first_token = std::max(0, work.seq_len - work.q_len + 1 - window) / slab * slab;
  }
  for (work.head = 0; work.head < c.limits.num_kv_heads; ++work.head) {
    for (work.column_group = 0; work.column_group * block < work.columns; ++work.column_group) {
      all.push_back(work);
    }
  }
}

/// All items of a step.
inline std::vector<ColumnsWork> work_of(const ColumnsScheduleCase& c) {
  std::vector<ColumnsWork> all;
  for (const kernels::PrefixTile& tile : c.tiles) {
    for (std::int32_t head = 0; head < c.limits.num_kv_heads; ++head) {
      all.push_back({.q_begin = tile.first_token,
                     .q_len = 0,
                     .head = head,
                     .column_group = 0,
                     .columns = (tile.end_token - tile.first_token) * c.group(),
                     .table_row = tile.table_row,
                     .first_token = 0,
                     .seq_len = tile.shared_tokens});
    }
  }
  for (std::size_t row = 0; row < c.seq_lens.size(); ++row) {
    if (!c.is_taken(row)) continue;
    const auto is_it = [&](const auto& m) { return m.row == static_cast<std::int32_t>(row); };
    const auto member = std::ranges::find_if(c.members, is_it);
    ColumnsWork work{};
    work.table_row = c.row_slots[row];
    if (member != c.members.end()) {
      work.member = static_cast<std::int32_t>(member - c.members.begin());
      work.first_token = c.shared_tokens[row];
    }
    // Up to kRunTokens query tokens at a time, each with the tokens up to its last one.
    const bool has_runs = kernels::has_runs(c.limits);
    const std::int32_t step = has_runs ? kernels::kRunTokens : c.q_len(row);
    for (std::int32_t first = 0; first < c.q_len(row); first += step) {
      work.q_begin = static_cast<std::int32_t>(c.q_offsets[row]) + first;
      work.q_len = std::min(step, c.q_len(row) - first);
      work.seq_len = c.seq_lens[row] - c.q_len(row) + first + work.q_len;
      add_items(c, work, all);
    }
  }
  return all;
}

/// Random steps.
class ColumnsScheduleDice {
 public:
  explicit ColumnsScheduleDice(std::uint64_t seed) : random_(seed) {}

  ColumnsScheduleCase roll() {
    ColumnsScheduleCase c;
    do {
      c.limits = roll_limits();
    } while (!kernels::check_columns_limits(c.limits).is_ok());
    const bool may_have_runs =
        kernels::has_runs(c.limits) && c.limits.q_len == kernels::kRunTokens && once_in(2);
    c.max_q_len = may_have_runs ? between(65, 300) : 0;
    c.window_tokens = c.limits.head_dim != kernels::kLatentDim && once_in(4) ? between(1, 3000) : 0;
    roll_rows(c);
    if (c.limits.shared_rows > 0 && c.window_tokens == 0) share_prefixes(c);
    c.fixed_parts = c.limits.fixed_tokens > 0;
    return c;
  }

 private:
  std::int32_t between(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool once_in(std::int32_t times) { return between(1, times) == 1; }
  std::int32_t one_of(std::initializer_list<std::int32_t> list) {
    return *(list.begin() + between(0, static_cast<std::int32_t>(list.size()) - 1));
  }

  kernels::ColumnsLimits roll_limits() {
    kernels::ColumnsLimits limits;
    limits.head_dim =
        one_of({64, 80, 96, 128, 192, 192, 256, kernels::kLatentDim, kernels::kLatentDim});
    const bool is_latent = limits.head_dim == kernels::kLatentDim;
    if (limits.head_dim == kernels::kLongKeyDim && once_in(2)) {
      limits.value_dim = kernels::kShortValueDim;
    }
    limits.kv_dtype = once_in(3) ? DType::fp8_e4m3 : DType::bf16;
    limits.num_kv_heads = is_latent ? 1 : one_of({1, 2, 3, 8});
    limits.num_q_heads =
        is_latent ? one_of({16, 20, 64, 128}) : limits.num_kv_heads * one_of({1, 3, 4, 8, 16, 64});
    limits.q_len = one_of({1, 2, 4, 5, 16, 64, kernels::has_runs(limits) ? 64 : 1});
    limits.num_sms = one_of({132, 132, 78, 20, 3});
    limits.max_rows = 1;  // until the rows are known
    if (once_in(5)) limits.fixed_tokens = one_of({1000, 100000});
    if (!is_latent && limits.value_dim == 0 && limits.fixed_tokens == 0 && once_in(2)) {
      limits.shared_rows = 1;
    }
    return limits;
  }

  void roll_rows(ColumnsScheduleCase& c) {
    const std::int32_t rows = once_in(3) ? between(1, 1500) : between(1, 40);
    const std::int32_t kind = between(0, 2);
    const std::int32_t most = one_of({60, 600, rows < 60 ? 70000 : 2000});
    const std::int32_t same = between(1, most);
    const bool has_equal_q = once_in(2);
    const std::int32_t most_q = c.max_q_len > 0 && once_in(2) ? c.max_q_len : c.limits.q_len;
    std::int32_t entries = 0;
    for (std::int32_t row = 0; row < rows; ++row) {
      const std::int32_t q_len = has_equal_q  ? most_q
                                 : once_in(8) ? between(0, most_q + 1)
                                              : between(1, most_q);
      const std::int32_t length = kind == 0 ? same : kind == 1 ? between(0, most) : most / 50;
      c.seq_lens.push_back(std::max(q_len, row == rows / 2 && kind == 2 ? most : length));
      if (once_in(30)) c.seq_lens.back() = q_len;
      c.row_slots.push_back(once_in(8) ? -1 : between(0, 1 << 20));
      c.q_offsets.push_back(c.q_offsets.back() + q_len);
      if (c.is_taken(static_cast<std::size_t>(row))) {
        entries += kernels::has_runs(c.limits) ? std::max(1, (q_len + 63) / 64) : 1;
      }
    }
    c.limits.max_rows = std::max(1, entries + between(0, 3));
    if (c.limits.shared_rows > 0) c.limits.shared_rows = std::min(c.limits.max_rows, 4096);
  }

  /// Lets runs of neighbouring rows share their first tokens, and writes the plan of it.
  void share_prefixes(ColumnsScheduleCase& c) {
    const std::int32_t block = kernels::columns_shape(c.limits).columns;
    std::int32_t tokens = 0;
    c.shared_tokens.assign(c.seq_lens.size(), 0);
    std::int32_t shared = 0;  // of the rows of the group
    for (std::size_t row = 0; row < c.seq_lens.size(); ++row) {
      const std::int32_t q_len = c.q_len(row);
      const std::int32_t longest = (c.seq_lens[row] - q_len) / 16 * 16;
      if (shared == 0 || once_in(6)) shared = longest < 16 ? 0 : 16 * between(1, longest / 16);
      const bool fits = q_len * c.group() <= block &&
                        tokens + q_len <= kernels::max_shared_tokens(c.limits) &&
                        c.members.size() < static_cast<std::size_t>(c.limits.shared_rows);
      if (!c.is_taken(row) || shared == 0 || shared > longest || !fits || once_in(4)) {
        shared = 0;
        continue;
      }
      const bool goes_on = !c.tiles.empty() && c.tiles.back().shared_tokens == shared &&
                           (tokens + q_len - c.tiles.back().first_token) * c.group() <= block;
      const auto member = static_cast<std::int32_t>(c.members.size());
      if (!goes_on) c.tiles.push_back({c.row_slots[row], shared, member, member, tokens, tokens});
      c.tiles.back().end_member = member + 1;
      c.tiles.back().end_token = tokens + q_len;
      const auto tile = static_cast<std::int32_t>(c.tiles.size()) - 1;
      c.members.push_back({static_cast<std::int32_t>(row), tile, tokens});
      c.shared_tokens[row] = shared;
      tokens += q_len;
    }
  }

  std::mt19937_64 random_;
};

}  // namespace kvarena::test
