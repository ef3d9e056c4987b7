#pragma once

/// @file
/// An attention problem on the device, ready for prefill launches.

#include "kernel/attention_case.hpp"
#include "kernel/cuda_pool.hpp"
#include "kernels/prefill/prefill.h"
#include "support/status_matchers.hpp"

#include <cstdint>
#include <vector>

namespace kvarena::test {

/// Keeps a reference to its problem.
class PrefillProblem {
 public:
  PrefillProblem(AttentionProblem& problem, cudaStream_t stream)
      : problem_(problem),
        stream_(stream),
        pool_(problem.pool()),
        entries_(with_one(problem.entries())),
        pages_(with_one(problem.pages())),
        row_offsets_(problem.row_offsets()),
        q_offsets_(problem.q_offsets()),
        lengths_(problem.shape().seq_lens),
        q_(problem.q()),
        key_scales_(problem.key_scales()),
        value_scales_(problem.value_scales()),
        sinks_(problem.sinks()),
        out_(static_cast<std::size_t>(problem.out_elements() * bytes_of(problem.shape().out_dtype) +
                                      kGuardBytes)),
        lse_(static_cast<std::size_t>(problem.lse_elements())) {
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
  }

  /// Queues the launch.
  void launch() { EXPECT_OK(kernels::launch_prefill(params, stream_)); }
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
};

}  // namespace kvarena::test
