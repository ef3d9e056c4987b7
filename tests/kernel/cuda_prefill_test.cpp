// Prefill attention on the GPU against double precision over the KV as stored: ragged, causal,
// chunked, with NaN in every slot that no sequence owns. Every case is run again with other garbage
// there, for the same bits. These are the kernels for every GPU; cuda_hopper_prefill_test.cpp has
// those of the Hopper kernel.

#include "kernel/campaign.hpp"
#include "kernel/prefill_problem.hpp"

#include <algorithm>

namespace kvarena::test {
namespace {

using kernels::AttentionParams;
using kernels::launch_prefill;
using kernels::PrefillParams;

AttentionCase ragged_case(std::uint64_t seed) {
  AttentionCase c;
  c.seed = seed;
  c.seq_lens = {0, 1, 15, 16, 17, 130, 70, 33};
  c.q_counts = {2, 1, 15, 1, 17, 100, 65, 0};
  c.window_tokens = seed % 4 == 1 ? 20 : 0;
  c.soft_cap = seed % 4 == 2 ? 3.0F : 0.0F;
  c.has_sinks = seed % 4 == 3;
  c.block_major = seed % 3 != 0;
  c.paged_table = seed % 2 == 0;
  return c;
}

bool is_valid(const AttentionCase& c) {
  return c.tile_order == TileOrder::rows ||
         (c.block_size % kTileTokens == 0 && has_chunked_order(c.key_dtype, c.head_dim_k) &&
          has_chunked_order(c.value_dtype, c.head_dim_v));
}

class CudaPrefill : public CudaTest {
 protected:
  void expect_matches(AttentionProblem& problem) {
    PrefillProblem device(problem, stream_);
    device.params.compute_capability = 0;
    const AttentionOutput first = device.run();
    expect_close(problem, first, "prefill");
    EXPECT_TRUE(same_bytes(device.pool().download(), problem.pool())) << "the pool is only read";
    device.pool().upload(problem.pool_with(Poison::infinity));
    const AttentionOutput again = device.run();
    EXPECT_TRUE(same_bytes(first.out, again.out))
        << "same tokens, same bits; " << to_string(problem.shape());
    EXPECT_EQ(first.lse, again.lse) << "same tokens, same bits; " << to_string(problem.shape());
  }
  void expect_all_match(const std::vector<AttentionCase>& cases) {
    for_each_problem(cases, [&](AttentionProblem& problem) { expect_matches(problem); });
  }
};

TEST_F(CudaPrefill, TensorCoresForAllDimsBlocksOrdersAndGroups) {
  constexpr std::int32_t kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 16};
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 0;
  for (const DType dtype : {DType::bf16, DType::f16, DType::fp8_e4m3}) {
    for (const std::int32_t dim : {64, 80, 96, 128, 192, 256}) {
      for (const std::int32_t block_size : {1, 7, 16, 32, 48, 64, 128}) {
        for (const TileOrder order : {TileOrder::rows, TileOrder::chunked}) {
          AttentionCase c = ragged_case(++seed);
          c.head_dim_k = c.head_dim_v = dim;
          c.key_dtype = c.value_dtype = c.q_dtype = c.out_dtype = dtype;
          if (dtype == DType::fp8_e4m3) {
            c.q_dtype = c.out_dtype = seed % 2 == 0 ? DType::bf16 : DType::f16;
            c.scales = seed % 3 == 0 ? ScaleKind::per_head : ScaleKind::per_tensor;
          }
          c.block_size = block_size;
          c.tile_order = order;
          c.group = kGroups[seed % std::size(kGroups)];
          c.num_kv_heads = c.group > 8 ? 1 : 2;
          if (is_valid(c) && is_picked(seed)) cases.push_back(c);
        }
      }
    }
  }
  expect_all_match(cases);
}

TEST_F(CudaPrefill, PlainForOtherTypesAndDims) {
  constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
  constexpr DType kStored[] = {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3};
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 500;
  for (const DType kv : kStored) {
    for (const DType q : kFloats) {
      for (const auto& [dim_k, dim_v] : {std::pair{72, 72}, {64, 48}, {192, 128}, {7, 5}}) {
        for (const ScaleKind scales :
             {ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head}) {
          if (kv != DType::fp8_e4m3 && scales != ScaleKind::none) continue;
          AttentionCase c = ragged_case(++seed);
          c.head_dim_k = dim_k;
          c.head_dim_v = dim_v;
          c.key_dtype = c.value_dtype = kv;
          c.q_dtype = q;
          c.out_dtype = seed % 2 == 0 ? q : DType::f32;
          c.block_size = seed % 3 == 0 ? 16 : 5;
          c.group = 2;
          c.scales = scales;
          if (seed % 3 == 0) c.tile_order = TileOrder::chunked;
          if (!is_valid(c)) c.tile_order = TileOrder::rows;
          if (is_picked(seed)) cases.push_back(c);
        }
      }
    }
  }
  expect_all_match(cases);
}

AttentionCase random_case(std::uint64_t seed) {
  Dice dice(seed);
  AttentionCase c;
  c.seed = seed;
  const DType dtype = dice.one_of({DType::bf16, DType::f16, DType::bf16, DType::f16, DType::f32});
  c.key_dtype = c.value_dtype = c.q_dtype = c.out_dtype = dtype;
  if (dice.once_in(4)) c.out_dtype = DType::f32;
  if (dice.once_in(5)) {
    c.key_dtype = c.value_dtype = DType::fp8_e4m3;
    c.scales = dice.one_of({ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head});
  }
  c.head_dim_k = c.head_dim_v =
      dice.once_in(5) ? dice.between(1, 200) : dice.one_of({64, 80, 96, 128, 192, 256});
  if (dice.once_in(8)) c.head_dim_v = dice.between(1, 200);
  c.tile_order = dice.one_of({TileOrder::rows, TileOrder::chunked});
  c.block_size = dice.once_in(2) ? 16 * dice.one_of({1, 2, 3, 4, 8}) : dice.between(1, 40);
  if (!is_valid(c)) c.tile_order = TileOrder::rows;
  c.num_kv_heads = dice.between(1, 3);
  c.group = dice.between(1, 16);
  c.window_tokens = dice.once_in(3) ? dice.between(1, 100) : 0;
  c.soft_cap = dice.once_in(4) ? 5.0F : 0.0F;
  c.has_sinks = dice.once_in(3);
  c.block_major = dice.once_in(2);
  c.paged_table = dice.once_in(2);
  for (std::int32_t row = dice.between(0, 4); row >= 0; --row) {
    c.seq_lens.push_back(dice.length(c.block_size, 300));
    c.q_counts.push_back(std::min(c.seq_lens.back(), dice.between(0, dice.once_in(3) ? 130 : 12)));
  }
  if (c.q_counts.back() == 0) c.q_counts.back() = 1;
  if (dice.once_in(10)) c.q_counts.clear();
  return c;
}

TEST_F(CudaPrefill, RandomShapes) {
  std::vector<AttentionCase> cases;
  for (int i = 0; i < rounds(1000); ++i) {
    cases.push_back(random_case(first_seed() * 100000 + static_cast<std::uint64_t>(i)));
  }
  expect_all_match(cases);
}

TEST_F(CudaPrefill, OneQueryTokenARowWithoutOffsets) {
  std::vector<AttentionCase> cases(2, ragged_case(900));
  for (AttentionCase& c : cases) c.q_counts.clear();
  cases[1].head_dim_k = cases[1].head_dim_v = 72;
  expect_all_match(cases);
}

// A graph captured for full rows is replayed for shorter ones: what a captured chunk of a prompt
// is.
TEST_F(CudaPrefill, IsCapturedAndReplayedWithOtherLengths) {
  AttentionCase full = ragged_case(904);
  full.q_counts = {1, 1, 2, 3, 5, 40, 30, 1};
  full.seq_lens[0] = 3;
  AttentionProblem problem(full);
  PrefillProblem device(problem, stream_);
  device.run();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  device.launch();
  EXPECT_CUDA(cudaStreamEndCapture(stream_, &graph));
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (std::int32_t shorter : {0, 1, 7, 30, 0}) {
    std::vector<std::int32_t> lengths = full.seq_lens;
    for (std::int32_t& length : lengths) length = std::max(0, length - shorter);
    device.lengths().upload(lengths);
    device.clear();
    EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
    const AttentionOutput replayed = device.output();
    const AttentionOutput eager = device.run();
    EXPECT_TRUE(same_bytes(replayed.out, eager.out)) << shorter;
    EXPECT_EQ(replayed.lse, eager.lse) << shorter;
    if (shorter == 0) expect_close(problem, replayed, "replayed prefill");
  }
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace kvarena::test
