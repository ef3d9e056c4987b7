#pragma once

/// @file
/// An attention problem on the device, ready for launches of the columns kernel.

#include "kernel/attention_case.hpp"
#include "kernel/cuda_pool.hpp"
#include "kernels/columns/columns.h"
#include "kernels/columns/columns_workspace.h"
#include "kernels/columns/prefix_plan.h"
#include "kernels/columns/shared_prefixes.h"
#include "support/status_matchers.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvarena::test {

/// Sets the types of a case: K and V of `dtype`, and q and out too unless that is fp8. Then `seed`
/// chooses their type and the kind of scales.
inline void set_types(AttentionCase& c, DType dtype, std::uint64_t seed) {
  const bool is_fp8 = dtype == DType::fp8_e4m3;
  c.key_dtype = c.value_dtype = dtype;
  c.q_dtype = c.out_dtype = !is_fp8 ? dtype : seed % 2 == 0 ? DType::bf16 : DType::f16;
  if (is_fp8) c.scales = static_cast<ScaleKind>(seed / 2 % 3);
}
/// Whether the kernel serves K and V of this type and head_dim.
inline bool has_instance(DType dtype, std::int32_t head_dim) {
  return dtype != DType::fp8_e4m3 || head_dim != 80;
}

/// How a problem is put before the kernel.
struct ColumnsOptions {
  std::int32_t num_sms = 132;     ///< fewer cut rows elsewhere
  bool fixed_parts = false;       ///< cut at fixed tokens
  std::int32_t first_q = 0;       ///< query tokens in front of the batch's, which stay as they are
  std::int32_t skipped_row = -1;  ///< a row without a table
  std::int32_t min_q_len = 1;     ///< query tokens of the rows of the class
  std::int32_t q_len = 0;         ///< and the most; 0: those of the row with the most
  std::int32_t max_rows = 0;      ///< of the class; 0: as many as there are
  std::int32_t shared_rows = 0;   ///< with more than 0, prefixes are searched for
  bool shares_short = true;       ///< prefixes are shared where this saves bytes, if not time
  std::int32_t own_sixteenths = 0;  ///< as in FindPrefixesParams
};

/// Keeps a reference to its problem. Table entries that no query token needs are -1.
class ColumnsProblem {
 public:
  ColumnsProblem(const AttentionProblem& problem, cudaStream_t stream,
                 const ColumnsOptions& options = {})
      : problem_(problem), options_(options), stream_(stream), pool_(problem.pool()) {
    upload_tables();
    upload_arrays();
    fill_params();
  }

  /// Schedules and runs. The output is filled with 0xFF first; only the batch's part is written.
  AttentionOutput run(bool overlap = false) {
    out_.fill(0xFF);
    lse_.fill(0xFF);
    if (find.prefixes != nullptr) {
      prefixes_.fill(0xFF);
      shared_tokens_.fill(0xFF);
      EXPECT_OK(kernels::launch_find_prefixes(find, stream_));
    }
    EXPECT_OK(kernels::launch_columns_schedule(schedule, stream_));
    EXPECT_OK(kernels::launch_columns(params, false, stream_));
    if (overlap) {
      EXPECT_OK(kernels::launch_columns(params, true, stream_));
    }
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    const std::vector<std::byte> all = out_.download();
    const std::vector<float> all_lse = lse_.download();
    const auto front = static_cast<std::ptrdiff_t>(options_.first_q * bytes_of_out());
    const std::vector<std::byte> before(all.begin(), all.begin() + front);
    const std::vector<std::byte> tail(all.end() - kGuardBytes, all.end());
    EXPECT_EQ(before, std::vector<std::byte>(before.size(), std::byte{0xFF})) << "in front";
    EXPECT_EQ(tail, std::vector<std::byte>(kGuardBytes, std::byte{0xFF})) << "past the output";
    return {{all.begin() + front, all.end() - kGuardBytes},
            {all_lse.begin() + options_.first_q * params.limits.num_q_heads, all_lse.end()}};
  }
  /// Fills the workspace with garbage, but not the counters.
  void spoil_workspace() {
    const std::vector<std::byte> garbage(workspace_.size() - counter_bytes(), std::byte{0xFF});
    EXPECT_CUDA(cudaMemcpy(workspace_.data() + counter_bytes(), garbage.data(), garbage.size(),
                           cudaMemcpyHostToDevice));
    EXPECT_CUDA(cudaDeviceSynchronize());
  }
  /// Fails the test unless all counters are 0.
  void expect_counters_at_rest() {
    std::vector<std::byte> counters = workspace_.download();
    counters.resize(counter_bytes());
    EXPECT_EQ(counters, std::vector<std::byte>(counters.size(), std::byte{0}));
  }
  /// What the last run wrote: tokens of the prefix of each row, and the prefixes.
  std::vector<std::int32_t> shared_tokens() const { return shared_tokens_.download(); }
  std::vector<std::byte> prefixes() const { return prefixes_.download(); }
  /// The pool that `run` reads.
  DeviceArray<std::byte>& pool() { return pool_; }
  /// Bytes of a query token in q, and in out.
  std::int64_t bytes_of_token() const { return bytes_of_heads(problem_.shape().head_dim_k); }
  std::int64_t bytes_of_out() const { return bytes_of_heads(problem_.shape().head_dim_v); }

  kernels::FindPrefixesParams find;
  kernels::ColumnsScheduleParams schedule;
  kernels::ColumnsParams params;

 private:
  static constexpr std::ptrdiff_t kGuardBytes = 256;

  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  std::int64_t bytes_of_heads(std::int64_t dim) const {
    const AttentionCase& c = problem_.shape();
    return c.num_kv_heads * c.group * dim * bytes_of(c.q_dtype);
  }
  std::size_t counter_bytes() const;

  void upload_tables() {
    const BatchView batch = problem_.args(nullptr, nullptr).batch;
    for (std::int32_t row = 0; row < batch.num_rows; ++row) {
      most_ = std::max(most_, batch.num_blocks[row]);
    }
    // Row `r` of the batch has table row num_rows - r; nobody has table row 0.
    std::vector<BlockId> tables(size((batch.num_rows + 1) * most_), BlockId{-1});
    std::vector<std::int32_t> slots;
    const AttentionCase& c = problem_.shape();
    for (std::int32_t row = 0; row < batch.num_rows; ++row) {
      slots.push_back(row == options_.skipped_row ? -1 : batch.num_rows - row);
      const auto count = static_cast<std::int32_t>(problem_.q_offsets()[size(row) + 1] -
                                                   problem_.q_offsets()[size(row)]);
      const std::int32_t first_seen =
          c.window_tokens == 0 ? 0 : std::max(0, batch.seq_lens[row] - count + 1 - c.window_tokens);
      for (std::int32_t j = first_seen / c.block_size; j < batch.num_blocks[row]; ++j) {
        tables[size((batch.num_rows - row) * most_ + j)] = batch.tables.block(row, j);
      }
    }
    tables_ = DeviceArray<BlockId>(tables);
    row_slots_ = DeviceArray<std::int32_t>(slots);
  }
  void upload_arrays() {
    const AttentionCase& c = problem_.shape();
    const std::int64_t tokens = problem_.q_offsets().back() + options_.first_q;
    lengths_ = DeviceArray<std::int32_t>(c.seq_lens);
    std::vector<std::int64_t> offsets = problem_.q_offsets();
    for (std::int64_t& offset : offsets) offset += options_.first_q;
    q_offsets_ = DeviceArray<std::int64_t>(offsets);
    std::vector<std::byte> q(size(options_.first_q * bytes_of_token()), std::byte{0xFF});
    q.insert(q.end(), problem_.q().begin(), problem_.q().end());
    q_ = DeviceArray<std::byte>(q);
    out_ = DeviceArray<std::byte>(size(tokens * bytes_of_out() + kGuardBytes));
    lse_ = DeviceArray<float>(size(tokens * c.num_kv_heads * c.group));
    if (!problem_.key_scales().empty()) {
      key_scales_ = DeviceArray<float>(problem_.key_scales());
      value_scales_ = DeviceArray<float>(problem_.value_scales());
    }
    if (!problem_.sinks().empty()) sinks_ = DeviceArray<float>(problem_.sinks());
    if (problem_.tree_masks().empty()) return;
    std::vector<std::uint64_t> masks(size(options_.first_q), ~std::uint64_t{0});
    masks.insert(masks.end(), problem_.tree_masks().begin(), problem_.tree_masks().end());
    tree_masks_ = DeviceArray<std::uint64_t>(masks);
  }
  void fill_params();
  void fill_find();

  const AttentionProblem& problem_;
  ColumnsOptions options_;
  cudaStream_t stream_;
  std::int32_t most_ = 1;
  DeviceArray<std::byte> pool_;
  DeviceArray<BlockId> tables_;
  DeviceArray<std::int32_t> row_slots_;
  DeviceArray<std::int32_t> lengths_;
  DeviceArray<std::int64_t> q_offsets_;
  DeviceArray<std::byte> q_;
  DeviceArray<std::byte> out_;
  DeviceArray<float> lse_;
  DeviceArray<float> key_scales_;
  DeviceArray<float> value_scales_;
  DeviceArray<float> sinks_;
  DeviceArray<std::uint64_t> tree_masks_;
  DeviceArray<std::byte> workspace_;
  DeviceArray<std::int32_t> shared_tokens_;
  DeviceArray<std::byte> prefixes_;
};

inline std::size_t ColumnsProblem::counter_bytes() const {
  const std::int64_t counters = kernels::columns_workspace(params.limits).max_slots;
  return size(counters * static_cast<std::int64_t>(sizeof(std::int32_t)));
}

/// Equal counts of query tokens are given without offsets.
inline void ColumnsProblem::fill_params() {
  const AttentionArgs a = problem_.args(nullptr, nullptr);
  const AttentionCase& c = problem_.shape();
  const auto rows = static_cast<std::int32_t>(c.seq_lens.size());
  std::int32_t q_len = options_.q_len;
  for (const std::int32_t count : c.q_counts) {
    if (options_.q_len == 0) q_len = std::max({q_len, count, 1});
  }
  if (options_.shared_rows > 0) options_.max_rows = std::max(options_.max_rows, rows);
  auto of_class =
      static_cast<std::int32_t>(std::count_if(c.q_counts.begin(), c.q_counts.end(), [&](auto n) {
        return n >= options_.min_q_len && n <= q_len;
      }));
  const bool is_short =
      c.head_dim_k == kernels::kLongKeyDim && c.head_dim_v == kernels::kShortValueDim;
  if ((is_short || c.head_dim_k == kernels::kLatentDim) && q_len > kernels::kRunTokens) {
    schedule.max_q_len = std::exchange(q_len, kernels::kRunTokens);
    for (const std::int32_t count : c.q_counts) of_class += count / kernels::kRunTokens;
  }
  const bool is_ragged =
      std::any_of(c.q_counts.begin(), c.q_counts.end(), [&](auto n) { return n != q_len; });
  std::int64_t tokens = 0;
  for (const std::int32_t length : c.seq_lens) tokens += length;
  params.limits = {.max_rows = options_.max_rows > 0 ? options_.max_rows : std::max(1, of_class),
                   .q_len = q_len,
                   .num_q_heads = a.num_q_heads,
                   .num_kv_heads = c.num_kv_heads,
                   .head_dim = c.head_dim_k,
                   .value_dim = is_short ? c.head_dim_v : 0,
                   .num_sms = options_.num_sms,
                   .kv_dtype = c.key_dtype,
                   .fixed_tokens = options_.fixed_parts ? tokens : 0,
                   .shared_rows = options_.shared_rows};
  workspace_ = DeviceArray<std::byte>(size(kernels::columns_workspace_bytes(params.limits)));
  workspace_.fill(0xFF);
  schedule.limits = params.limits;
  schedule.min_q_len = options_.min_q_len;
  schedule.num_rows = params.num_rows = rows;
  schedule.window_tokens = params.window_tokens = c.window_tokens;
  schedule.workspace = params.workspace = workspace_.data();
  schedule.workspace_bytes = params.workspace_bytes =
      kernels::columns_workspace_bytes(params.limits);
  schedule.seq_lens = lengths_.data();
  schedule.q_offsets = is_ragged ? q_offsets_.data() : nullptr;
  schedule.first_q = options_.first_q;
  schedule.row_slots = row_slots_.data();
  schedule.fixed_parts = options_.fixed_parts;
  params.q = q_.data();
  params.out = out_.data();
  params.lse = lse_.data();
  params.sinks = sinks_.data();
  params.tree_mask = tree_masks_.data();
  params.key = pool_.data() + (a.kv.key.base - problem_.pool().data());
  params.value = pool_.data() + (a.kv.value.base - problem_.pool().data());
  params.block_stride = a.kv.key.block_stride;
  params.head_stride = a.kv.key.head_stride;
  params.value_head_stride = a.kv.value.head_stride;
  params.block_size = c.block_size;
  params.block_tables = tables_.data();
  params.table_stride = most_;
  params.dtype = c.q_dtype;
  params.scales = {.key = key_scales_.data(),
                   .value = value_scales_.data(),
                   .per_head = c.scales == ScaleKind::per_head};
  params.scale = a.scale;
  params.soft_cap = c.soft_cap;
  if (options_.shared_rows > 0) fill_find();
}

inline void ColumnsProblem::fill_find() {
  const std::int64_t bytes = kernels::shared_prefixes_bytes(params.limits);
  prefixes_ = DeviceArray<std::byte>(size(bytes));
  shared_tokens_ = DeviceArray<std::int32_t>(size(params.num_rows));
  find.limits = params.limits;
  find.seq_lens = schedule.seq_lens;
  find.q_offsets = schedule.q_offsets;
  find.first_q = schedule.first_q;
  find.row_slots = schedule.row_slots;
  find.num_rows = params.num_rows;
  find.window_tokens = params.window_tokens;
  find.block_size = params.block_size;
  find.block_tables = params.block_tables;
  find.table_stride = params.table_stride;
  schedule.shared_tokens = find.shared_tokens = shared_tokens_.data();
  schedule.prefixes = params.prefixes = find.prefixes = prefixes_.data();
  find.prefixes_bytes = bytes;
  find.own_sixteenths = options_.own_sixteenths;
  if (!options_.shares_short) return;
  find.saved_sixteenths = 16;
  find.member_tokens = 0;
  find.group_tokens = 256;
}

}  // namespace kvarena::test
