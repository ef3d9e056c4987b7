#pragma once

/// @file
/// An attention problem on the device, ready for decode launches.

#include "kernel/attention_case.hpp"
#include "kernel/cuda_pool.hpp"
#include "kernels/decode/decode.h"
#include "support/status_matchers.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvarena::test {

/// Where a problem's blocks lie in another pool: block `i` of the problem is block `ids[i]` there.
struct Elsewhere {
  std::byte* base = nullptr;          ///< of that pool, on the device
  std::span<const std::int32_t> ids;  ///< one for each block of the problem
};

/// Keeps a reference to its problem.
class DecodeProblem {
 public:
  DecodeProblem(const AttentionProblem& problem, std::int32_t q_len, cudaStream_t stream,
                std::int32_t num_sms = 132, const Elsewhere& elsewhere = {})
      : problem_(problem), stream_(stream), pool_(problem.pool()) {
    upload_tables(elsewhere);
    upload_arrays();
    fill_params(q_len, num_sms, elsewhere);
  }

  /// Schedules and runs. The output is filled with 0xFF first; nothing past its end is written.
  AttentionOutput run() {
    out_.fill(0xFF);
    lse_.fill(0xFF);
    EXPECT_OK(kernels::launch_decode_schedule(schedule, stream_));
    EXPECT_OK(kernels::launch_decode(params, false, stream_));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    AttentionOutput output{out_.download(), lse_.download()};
    const std::vector<std::byte> tail(output.out.end() - kGuardBytes, output.out.end());
    EXPECT_EQ(tail, std::vector<std::byte>(kGuardBytes, std::byte{0xFF})) << "past the output";
    output.out.resize(output.out.size() - kGuardBytes);
    return output;
  }
  /// Uses other limits from now on, with a workspace for them.
  void set_limits(const kernels::DecodeLimits& limits) {
    const std::int64_t bytes = kernels::decode_workspace_bytes(limits);
    workspace_ = DeviceArray<std::byte>(static_cast<std::size_t>(bytes));
    workspace_.fill(0);
    schedule.limits = params.limits = limits;
    schedule.workspace = params.workspace = workspace_.data();
    schedule.workspace_bytes = params.workspace_bytes = bytes;
  }
  /// The pool that `run` reads.
  DeviceArray<std::byte>& pool() { return pool_; }

  kernels::DecodeScheduleParams schedule;
  kernels::DecodeParams params;

 private:
  static constexpr std::ptrdiff_t kGuardBytes = 256;

  /// Entries that no query token needs are wild ids: before the first token that one sees, -1.
  void upload_tables(const Elsewhere& elsewhere) {
    const AttentionCase& c = problem_.shape();
    const BatchView batch = problem_.args(nullptr, nullptr).batch;
    for (std::int32_t row = 0; row < batch.num_rows; ++row) {
      most_ = std::max(most_, batch.num_blocks[row]);
    }
    // Row `r` of the batch has table row num_rows - r; nobody has table row 0.
    const auto entries = static_cast<std::size_t>((batch.num_rows + 1) * most_);
    std::vector<BlockId> tables(entries, BlockId{1 << 28});
    std::vector<std::int32_t> slots;
    for (std::int32_t row = 0; row < batch.num_rows; ++row) {
      slots.push_back(batch.num_rows - row);
      const auto at = static_cast<std::size_t>(row);
      const std::int32_t q_count = c.q_counts.empty() ? 1 : c.q_counts[at];
      const std::int32_t hidden = batch.seq_lens[row] - q_count + 1 - c.window_tokens;
      for (std::int32_t j = 0; j < batch.num_blocks[row]; ++j) {
        if (c.window_tokens > 0 && (j + 1) * c.block_size <= hidden) {
          tables[static_cast<std::size_t>((batch.num_rows - row) * most_ + j)] = BlockId{-1};
          continue;
        }
        const std::int32_t id = batch.tables.block(row, j).value;
        tables[static_cast<std::size_t>((batch.num_rows - row) * most_ + j)] =
            BlockId{elsewhere.base != nullptr ? elsewhere.ids[static_cast<std::size_t>(id)] : id};
      }
    }
    tables_ = DeviceArray<BlockId>(tables);
    row_slots_ = DeviceArray<std::int32_t>(slots);
  }
  void upload_arrays() {
    lengths_ = DeviceArray<std::int32_t>(problem_.shape().seq_lens);
    const std::vector<std::int32_t>& counts = problem_.shape().q_counts;
    if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) != counts.end()) {
      q_offsets_ = DeviceArray<std::int64_t>(problem_.q_offsets());
    }
    q_ = DeviceArray<std::byte>(problem_.q());
    out_ = DeviceArray<std::byte>(static_cast<std::size_t>(
        problem_.out_elements() * bytes_of(problem_.shape().out_dtype) + kGuardBytes));
    lse_ = DeviceArray<float>(static_cast<std::size_t>(problem_.lse_elements()));
    if (!problem_.sinks().empty()) sinks_ = DeviceArray<float>(problem_.sinks());
    if (!problem_.key_scales().empty()) {
      key_scales_ = DeviceArray<float>(problem_.key_scales());
      value_scales_ = DeviceArray<float>(problem_.value_scales());
    }
  }
  void fill_params(std::int32_t q_len, std::int32_t num_sms, const Elsewhere& elsewhere) {
    const AttentionArgs a = problem_.args(nullptr, nullptr);
    const AttentionCase& c = problem_.shape();
    const auto rows = static_cast<std::int32_t>(c.seq_lens.size());
    const kernels::DecodeLimits limits{.max_rows = rows,
                                       .q_len = q_len,
                                       .num_q_heads = a.num_q_heads,
                                       .num_kv_heads = c.num_kv_heads,
                                       .head_dim = c.head_dim_k,
                                       .num_sms = num_sms,
                                       .has_clusters = has_clusters(),
                                       .kv_dtype = c.key_dtype};
    workspace_ =
        DeviceArray<std::byte>(static_cast<std::size_t>(kernels::decode_workspace_bytes(limits)));
    workspace_.fill(0);
    std::byte* base = elsewhere.base != nullptr ? elsewhere.base : pool_.data();
    schedule.limits = params.limits = limits;
    schedule.num_rows = params.num_rows = rows;
    schedule.window_tokens = params.window_tokens = c.window_tokens;
    schedule.workspace = params.workspace = workspace_.data();
    schedule.seq_lens = lengths_.data();
    params.q = q_.data();
    params.out = out_.data();
    params.lse = lse_.data();
    params.sinks = sinks_.data();
    params.key = base + (a.kv.key.base - problem_.pool().data());
    params.value = base + (a.kv.value.base - problem_.pool().data());
    params.block_stride = a.kv.key.block_stride;
    params.head_stride = a.kv.key.head_stride;
    params.block_size = c.block_size;
    params.block_tables = tables_.data();
    params.table_stride = most_;
    params.dtype = c.q_dtype;
    params.scale = a.scale;
    params.soft_cap = c.soft_cap;
    params.scales = {key_scales_.data(), value_scales_.data(), c.scales == ScaleKind::per_head};
    schedule.workspace_bytes = params.workspace_bytes = kernels::decode_workspace_bytes(limits);
    schedule.row_slots = row_slots_.data();
    schedule.q_offsets = q_offsets_.data();
  }

  const AttentionProblem& problem_;
  cudaStream_t stream_;
  std::int32_t most_ = 1;
  DeviceArray<std::byte> pool_;
  DeviceArray<BlockId> tables_;
  DeviceArray<std::int32_t> row_slots_;
  DeviceArray<std::int64_t> q_offsets_;
  DeviceArray<std::int32_t> lengths_;
  DeviceArray<std::byte> q_;
  DeviceArray<std::byte> out_;
  DeviceArray<float> lse_;
  DeviceArray<float> sinks_;
  DeviceArray<float> key_scales_;
  DeviceArray<float> value_scales_;
  DeviceArray<std::byte> workspace_;
};

}  // namespace kvarena::test
