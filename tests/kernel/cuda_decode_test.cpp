// Decode attention on the GPU against the reference in double precision over K and V as stored, in
// chunked tile order: ragged lengths, permuted blocks, NaN in every slot that no token owns.

#include "kernel/attention_case.hpp"
#include "kernel/cuda_pool.hpp"
#include "kernels/decode/decode.h"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace kvarena::test {
namespace {

using kernels::DecodeLimits;
using kernels::DecodeParams;
using kernels::DecodeScheduleParams;

/// A problem's memory on the device, ready to be launched many times.
class DeviceProblem {
 public:
  DeviceProblem(const AttentionProblem& problem, std::int32_t q_len, cudaStream_t stream)
      : problem_(problem), stream_(stream), pool_(problem.pool()) {
    const AttentionArgs a = problem.args(nullptr, nullptr);
    const AttentionCase& c = problem.shape();
    const auto rows = static_cast<std::int32_t>(c.seq_lens.size());
    std::int32_t most = 1;
    for (std::int32_t row = 0; row < rows; ++row) most = std::max(most, a.batch.num_blocks[row]);
    std::vector<BlockId> tables(static_cast<std::size_t>(rows * most), BlockId{1 << 28});
    for (std::int32_t row = 0; row < rows; ++row) {
      for (std::int32_t j = 0; j < a.batch.num_blocks[row]; ++j) {
        tables[static_cast<std::size_t>(row * most + j)] = a.batch.tables.block(row, j);
      }
    }
    tables_ = DeviceArray<BlockId>(tables);
    lengths_ = DeviceArray<std::int32_t>(c.seq_lens);
    const auto* q = static_cast<const std::byte*>(a.q);
    const auto q_bytes =
        static_cast<std::size_t>(problem.lse_elements() * c.head_dim_k * bytes_of(c.q_dtype));
    q_ = DeviceArray<std::byte>(std::vector<std::byte>(q, q + q_bytes));
    out_ = DeviceArray<std::byte>(
        static_cast<std::size_t>(problem.out_elements() * bytes_of(c.out_dtype)));
    lse_ = DeviceArray<float>(static_cast<std::size_t>(problem.lse_elements()));
    const DecodeLimits limits{.max_rows = rows,
                              .q_len = q_len,
                              .num_q_heads = a.num_q_heads,
                              .num_kv_heads = c.num_kv_heads,
                              .head_dim = c.head_dim_k,
                              .num_sms = 132,
                              .kv_dtype = c.key_dtype};
    workspace_ =
        DeviceArray<std::byte>(static_cast<std::size_t>(kernels::decode_workspace_bytes(limits)));
    EXPECT_CUDA(cudaMemset(workspace_.data(), 0,
                           static_cast<std::size_t>(kernels::decode_workspace_bytes(limits))));
    EXPECT_CUDA(cudaDeviceSynchronize());
    schedule = {.limits = limits,
                .seq_lens = lengths_.data(),
                .num_rows = rows,
                .window_tokens = c.window_tokens,
                .workspace = workspace_.data(),
                .workspace_bytes = kernels::decode_workspace_bytes(limits)};
    const auto on_device = [&](const PlaneView& plane) {
      return pool_.data() + (plane.base - problem.pool().data());
    };
    params = {.limits = limits,
              .q = q_.data(),
              .out = out_.data(),
              .lse = lse_.data(),
              .key = on_device(a.kv.key),
              .value = on_device(a.kv.value),
              .block_stride = a.kv.key.block_stride,
              .head_stride = a.kv.key.head_stride,
              .block_size = c.block_size,
              .block_tables = tables_.data(),
              .table_stride = most,
              .num_rows = rows,
              .window_tokens = c.window_tokens,
              .dtype = c.key_dtype,
              .scale = a.scale,
              .soft_cap = c.soft_cap,
              .workspace = workspace_.data(),
              .workspace_bytes = schedule.workspace_bytes};
  }

  /// Schedules and runs; the output is filled with 0xFF first.
  AttentionOutput run() {
    const auto bytes =
        static_cast<std::size_t>(problem_.out_elements() * bytes_of(problem_.shape().out_dtype));
    EXPECT_CUDA(cudaMemsetAsync(out_.data(), 0xFF, bytes, stream_));
    EXPECT_OK(kernels::launch_decode_schedule(schedule, stream_));
    EXPECT_OK(kernels::launch_decode(params, false, stream_));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    return {out_.download(), lse_.download()};
  }

  DecodeScheduleParams schedule;
  DecodeParams params;

 private:
  const AttentionProblem& problem_;
  cudaStream_t stream_;
  DeviceArray<std::byte> pool_;
  DeviceArray<BlockId> tables_;
  DeviceArray<std::int32_t> lengths_;
  DeviceArray<std::byte> q_;
  DeviceArray<std::byte> out_;
  DeviceArray<float> lse_;
  DeviceArray<std::byte> workspace_;
};

AttentionCase chunked_case(DType dtype, std::int32_t head_dim, std::int32_t group,
                           std::int32_t block_size) {
  AttentionCase c;
  c.key_dtype = c.value_dtype = c.q_dtype = c.out_dtype = dtype;
  c.head_dim_k = c.head_dim_v = head_dim;
  c.group = group;
  c.block_size = block_size;
  c.tile_order = TileOrder::chunked;
  return c;
}

class CudaDecode : public CudaTest {
 protected:
  void expect_matches(const AttentionCase& c, std::int32_t q_len) {
    const AttentionProblem problem(c);
    DeviceProblem device(problem, q_len, stream_);
    const AttentionOutput first = device.run();
    expect_close(problem, first, "decode");
    const AttentionOutput again = device.run();
    EXPECT_EQ(first.out, again.out) << "same inputs, same bits; " << to_string(c);
  }
};

TEST_F(CudaDecode, MatchesTheReferenceOverShapesAndRaggedLengths) {
  std::uint64_t seed = 1;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int32_t head_dim : {64, 96, 128, 256}) {
      for (const std::int32_t group : {1, 4, 7, 8, 12, 16}) {
        for (const std::int32_t block_size : {16, 32, 128}) {
          AttentionCase c = chunked_case(dtype, head_dim, group, block_size);
          c.seed = ++seed;
          c.seq_lens = {0, 1, 15, 16, 17, block_size - 1, block_size, block_size + 1, 300, 1023};
          expect_matches(c, 1);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(CudaDecode, WindowSoftCapAndSeveralQueryTokens) {
  std::uint64_t seed = 1000;
  for (const std::int32_t window : {0, 1, 16, 100}) {
    for (const float cap : {0.0F, 20.0F}) {
      for (const std::int32_t q_len : {1, 2, 5, 8}) {
        AttentionCase c = chunked_case(DType::bf16, 128, 3, 16);
        c.seed = ++seed;
        c.window_tokens = window;
        c.soft_cap = cap;
        c.seq_lens = {8, 9, 16, 23, 24, 25, 160, 700};
        if (q_len > 1) c.q_counts.assign(c.seq_lens.size(), q_len);
        expect_matches(c, q_len);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaDecode, LongAndManyRowsAreSplitAndCombined) {
  for (const std::int32_t kv_heads : {1, 8}) {
    AttentionCase c = chunked_case(DType::bf16, 64, 4, 16);
    c.num_kv_heads = kv_heads;
    c.seq_lens = {9000};
    expect_matches(c, 1);
    c.seq_lens.assign(150, 40);
    c.seq_lens[70] = 6000;
    expect_matches(c, 1);
  }
}

TEST_F(CudaDecode, RandomShapes) {
  std::mt19937 random(7);
  const auto pick = [&random](std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(random);
  };
  for (int i = 0; i < 200 && !HasFailure(); ++i) {
    const std::int32_t dims[] = {64, 96, 128, 256};
    AttentionCase c = chunked_case(pick(0, 1) == 0 ? DType::bf16 : DType::f16, dims[pick(0, 3)],
                                   pick(1, 16), 16 * pick(1, 4));
    c.seed = static_cast<std::uint64_t>(i) + 5000;
    c.num_kv_heads = pick(1, 5);
    c.window_tokens = pick(0, 2) == 0 ? pick(1, 500) : 0;
    c.block_major = pick(0, 1) == 0;
    c.seq_lens.resize(static_cast<std::size_t>(pick(1, 40)));
    for (std::int32_t& length : c.seq_lens) length = pick(0, 3) == 0 ? pick(0, 1500) : pick(0, 90);
    expect_matches(c, 1);
  }
}

TEST_F(CudaDecode, AGraphStaysRightWhileLengthsAndTablesChange) {
  AttentionCase c = chunked_case(DType::bf16, 128, 4, 16);
  c.seq_lens = {900, 30, 1, 250};
  const AttentionProblem problem(c);
  DeviceProblem device(problem, 1, stream_);
  DeviceArray<std::int32_t> lengths(c.seq_lens);
  device.schedule.seq_lens = lengths.data();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_OK(kernels::launch_decode_schedule(device.schedule, stream_));
  EXPECT_OK(kernels::launch_decode(device.params, false, stream_));
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);

  const AttentionOutput expected = device.run();
  for (int replay = 0; replay < 1000; ++replay) {
    // Shorter rows of the same sequences, then the full ones again.
    std::vector<std::int32_t> lens = c.seq_lens;
    for (std::int32_t& length : lens) length = std::max(0, length - replay % 7);
    lengths.upload(lens);
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  lengths.upload(c.seq_lens);
  ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  std::vector<std::byte> out(static_cast<std::size_t>(problem.out_elements() * 2));
  EXPECT_CUDA(cudaMemcpy(out.data(), device.params.out, out.size(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(out, expected.out);
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(CudaDecode, BadArgumentsAreRefusedByName) {
  AttentionCase c = chunked_case(DType::bf16, 128, 4, 16);
  c.seq_lens = {33};
  const AttentionProblem problem(c);
  DeviceProblem device(problem, 1, stream_);
  DecodeParams p = device.params;
  p.limits.head_dim = 80;
  EXPECT_FAILS(kernels::launch_decode(p, false, stream_), unsupported, head_dim);
  p = device.params;
  p.dtype = DType::f32;
  EXPECT_FAILS(kernels::launch_decode(p, false, stream_), unsupported, dtype);
  p = device.params;
  p.block_size = 24;
  EXPECT_FAILS(kernels::launch_decode(p, false, stream_), unsupported, block_size);
  p = device.params;
  p.q = nullptr;
  EXPECT_FAILS(kernels::launch_decode(p, false, stream_), invalid_argument, pointer);
  p = device.params;
  p.num_rows = 2;
  EXPECT_FAILS(kernels::launch_decode(p, false, stream_), invalid_argument, num_sequences);
}

}  // namespace
}  // namespace kvarena::test
