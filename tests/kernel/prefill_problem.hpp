#pragma once

/// @file
/// An attention problem on the device, ready for prefill launches.

#include "kernel/attention_case.hpp"
#include "kernel/cuda_pool.hpp"
#include "kernels/prefill/prefill.h"
#include "support/status_matchers.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvarena::test {

/// The block tables of a problem, with -1 where no kernel may look.
struct SpoiledTables {
  explicit SpoiledTables(const AttentionProblem& problem)
      : entries(problem.entries()), row_offsets(problem.row_offsets()) {
    const AttentionCase& c = problem.shape();
    if (c.paged_table) return;
    entries.assign(1, kNone);
    for (std::size_t row = 0; row < c.seq_lens.size(); ++row) {
      const std::int32_t count = c.q_counts.empty() ? 1 : c.q_counts[row];
      const std::int32_t first_end = std::max(0, c.seq_lens[row] - count + 1);
      const std::int32_t first_seen =
          c.window_tokens > 0 ? std::max(0, first_end - c.window_tokens) : 0;
      row_offsets[row] = static_cast<std::int64_t>(entries.size());
      const BlockId* from = problem.entries().data() + problem.row_offsets()[row];
      for (std::int32_t token = 0; token < c.seq_lens[row]; token += c.block_size, ++from) {
        entries.push_back(token + c.block_size > first_seen && count > 0 ? *from : kNone);
      }
      entries.insert(entries.end(), 40, kNone);
    }
  }

  static constexpr BlockId kNone{-1};
  std::vector<BlockId> entries;
  std::vector<std::int64_t> row_offsets;
};

/// The GPU's figures for launches.
struct GpuFigures {
  GpuFigures() {
    int major = 0;
    int minor = 0;
    int device = 0;
    EXPECT_CUDA(cudaGetDevice(&device));
    EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    EXPECT_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    EXPECT_CUDA(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device));
    compute_capability = 10 * major + minor;
  }
  std::int32_t num_sms = 0;
  std::int32_t compute_capability = 0;
};

/// Keeps a reference to its problem.
class PrefillProblem {
 public:
  PrefillProblem(AttentionProblem& problem, cudaStream_t stream, const SpoiledTables& tables)
      : problem_(problem),
        stream_(stream),
        pool_(problem.pool()),
        entries_(with_one(tables.entries)),
        pages_(with_one(problem.pages())),
        row_offsets_(tables.row_offsets),
        q_offsets_(problem.q_offsets()),
        lengths_(problem.shape().seq_lens),
        q_(problem.q()),
        key_scales_(problem.key_scales()),
        value_scales_(problem.value_scales()),
        sinks_(problem.sinks()),
        out_(static_cast<std::size_t>(problem.out_elements() * bytes_of(problem.shape().out_dtype) +
                                      kGuardBytes)),
        lse_(static_cast<std::size_t>(problem.lse_elements())),
        counters_(static_cast<std::size_t>(kernels::kPrefillCounterBytes)),
        plan_(static_cast<std::size_t>(kernels::prefill_plan_bytes(
            static_cast<std::int64_t>(problem.shape().seq_lens.size())))) {
    kernels::AttentionParams& a = params.attention;
    a = problem.params();
    a.kv.key.base = pool_.data() + (a.kv.key.base - problem.pool().data());
    a.kv.value.base = pool_.data() + (a.kv.value.base - problem.pool().data());
    a.batch.tables.entries = entries_.data();
    if (a.batch.tables.pages != nullptr) a.batch.tables.pages = pages_.data();
    a.batch.tables.row_offsets = row_offsets_.data();
    a.batch.seq_lens = lengths_.data();
    a.batch.num_blocks = nullptr;
    if (a.q_offsets != nullptr) a.q_offsets = q_offsets_.data();
    a.q = q_.data();
    a.out = out_.data();
    a.lse = lse_.data();
    a.scales.key = key_scales_.data();
    a.scales.value = value_scales_.data();
    a.sinks = sinks_.data();
    params.total_q = problem.q_offsets().back();
    const GpuFigures gpu;
    params.num_sms = gpu.num_sms;
    params.compute_capability = gpu.compute_capability;
    counters_.fill(0);
    plan_.fill(0xFF);
    params.counters = reinterpret_cast<kernels::PrefillCounters*>(counters_.data());
    params.plan = reinterpret_cast<kernels::PrefillPlan*>(plan_.data());
  }
  PrefillProblem(AttentionProblem& problem, cudaStream_t stream)
      : PrefillProblem(problem, stream, SpoiledTables(problem)) {}

  /// Leaves the first rows out, as when another kernel serves them.
  void skip_rows(std::int32_t count) {
    kernels::AttentionParams& a = params.attention;
    params.total_q -= problem_.q_offsets()[static_cast<std::size_t>(count)];
    a.batch.num_rows -= count;
    a.batch.tables.num_rows -= count;
    a.batch.tables.row_offsets += count;
    a.batch.seq_lens += count;
    a.q_offsets += count;
  }
  /// Queues the plan and the launch.
  void launch() {
    EXPECT_OK(kernels::launch_prefill_plan(params, stream_));
    EXPECT_OK(kernels::launch_prefill(params, stream_));
  }
  /// Fills the output with 0xFF.
  void clear() {
    out_.fill(0xFF);
    lse_.fill(0xFF);
  }
  /// What the launch has written; nothing past the output's end.
  AttentionOutput output() {
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    AttentionOutput output{out_.download(), lse_.download()};
    const std::vector<std::byte> tail(output.out.end() - kGuardBytes, output.out.end());
    EXPECT_EQ(tail, std::vector<std::byte>(kGuardBytes, std::byte{0xFF})) << "past the output";
    output.out.resize(output.out.size() - kGuardBytes);
    return output;
  }
  AttentionOutput run() {
    clear();
    launch();
    return output();
  }
  /// The pool that `run` reads, and lengths.
  DeviceArray<std::byte>& pool() { return pool_; }
  DeviceArray<std::int32_t>& lengths() { return lengths_; }

  kernels::PrefillParams params;

 private:
  static constexpr std::ptrdiff_t kGuardBytes = 256;
  template <class T>
  static std::vector<T> with_one(std::vector<T> values) {
    if (values.empty()) values.emplace_back(0);
    return values;
  }

  AttentionProblem& problem_;
  cudaStream_t stream_;
  DeviceArray<std::byte> pool_;
  DeviceArray<BlockId> entries_;
  DeviceArray<std::int32_t> pages_;
  DeviceArray<std::int64_t> row_offsets_;
  DeviceArray<std::int64_t> q_offsets_;
  DeviceArray<std::int32_t> lengths_;
  DeviceArray<std::byte> q_;
  DeviceArray<float> key_scales_;
  DeviceArray<float> value_scales_;
  DeviceArray<float> sinks_;
  DeviceArray<std::byte> out_;
  DeviceArray<float> lse_;
  DeviceArray<std::byte> counters_;
  DeviceArray<std::byte> plan_;
};

}  // namespace kvarena::test
