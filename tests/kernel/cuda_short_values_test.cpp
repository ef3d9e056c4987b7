// Attention over K of 192 dims and V of 128 on the GPU against the reference in double precision:
// decode, drafts, and prompts as several runs. Every case is run again over a spoiled workspace and
// other garbage in the pool, for the same bits.

#include "kernel/campaign.hpp"
#include "kernel/columns_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvarena::test {
namespace {

AttentionCase short_case(DType dtype, std::int32_t group, std::int32_t q_len) {
  AttentionCase c;
  c.key_dtype = c.value_dtype = c.q_dtype = c.out_dtype = dtype;
  c.head_dim_k = kernels::kLongKeyDim;
  c.head_dim_v = kernels::kShortValueDim;
  c.group = group;
  c.num_kv_heads = group > 8 ? 2 : 3;
  c.block_size = 32;
  c.block_major = true;
  c.tile_order = TileOrder::chunked;
  c.seq_lens = {0, q_len, 15, 16, 17, 31, 32, 33, 48, 96, 97, 300};
  for (std::int32_t& length : c.seq_lens) {
    if (length > 0) length = std::max(length, q_len);
  }
  c.q_counts.assign(c.seq_lens.size(), q_len);
  return c;
}

class CudaShortValues : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    int major = 0;
    EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "the kernel is for compute capability 9.0";
  }
  void expect_all_match(const std::vector<AttentionCase>& cases) {
    for_each_problem(cases, [&](const AttentionProblem& problem) {
      const AttentionCase& c = problem.shape();
      ColumnsOptions options;
      if (c.seed % 7 == 3) options.num_sms = 5;
      if (c.seed % 5 == 2) options.first_q = 3;
      options.fixed_parts = c.seed % 4 == 1;
      ColumnsProblem device(problem, stream_, options);
      const AttentionOutput first = device.run();
      expect_close(problem, first, "short values");
      device.expect_counters_at_rest();
      device.spoil_workspace();
      device.pool().upload(problem.pool_with(Poison::infinity));
      const AttentionOutput again = device.run(true);
      EXPECT_TRUE(same_bytes(first.out, again.out)) << "same tokens, same bits; " << to_string(c);
      EXPECT_EQ(first.lse, again.lse) << "same tokens, same bits; " << to_string(c);
    });
  }
};

TEST_F(CudaShortValues, EveryGroupAndNumberOfQueryTokens) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 0;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int32_t group : {1, 2, 4, 7, 8, 16}) {
      for (const std::int32_t q_len : {1, 2, 3, 8, 16, 64}) {
        AttentionCase c = short_case(dtype, group, q_len);
        c.seed = ++seed;
        c.block_size = 16 << seed % 4;
        c.has_sinks = seed % 3 == 0;
        if (seed % 5 == 0) c.window_tokens = 1 + static_cast<std::int32_t>(seed % 60);
        if (seed % 7 == 0) c.soft_cap = 30.0F;
        c.has_tree = seed % 4 == 2 && c.soft_cap == 0.0F;
        if (is_picked(seed)) cases.push_back(c);
      }
    }
  }
  expect_all_match(cases);
}

TEST_F(CudaShortValues, LongAndManyRowsAreSplitAndCombined) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 1000;
  for (const std::int32_t group : {8, 16}) {
    AttentionCase c = short_case(DType::bf16, group, 2);
    c.seed = ++seed;
    c.seq_lens = {is_watched() ? 2000 : 20000};
    c.q_counts = {2};
    cases.push_back(c);
    c.seed = ++seed;
    c.seq_lens.assign(is_watched() ? 30 : 200, 60);
    c.seq_lens[21] = is_watched() ? 1000 : 6000;
    c.q_counts.assign(c.seq_lens.size(), 1);
    cases.push_back(c);
  }
  expect_all_match(cases);
}

// Rows of more query tokens than a run has are several rows for the kernel.
TEST_F(CudaShortValues, PromptsOfSeveralRuns) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 2000;
  for (const std::int32_t group : {1, 4, 16}) {
    for (const std::int32_t window : {0, 40}) {
      AttentionCase c = short_case(DType::bf16, group, 1);
      c.seed = 4 * ++seed;  // no fixed parts
      c.has_sinks = group == 4;
      c.window_tokens = window;
      c.seq_lens = {300, 64, 200, 0, 70, 65, 900, 130};
      c.q_counts = {200, 64, 1, 0, 65, 65, 129, 0};
      cases.push_back(c);
    }
  }
  expect_all_match(cases);
}

TEST_F(CudaShortValues, RandomShapes) {
  std::vector<AttentionCase> cases;
  for (int i = 0; i < rounds(150); ++i) {
    const std::uint64_t seed = first_seed() * 100000 + static_cast<std::uint64_t>(i);
    Dice dice(seed);
    const std::int32_t group = dice.one_of({1, 2, 3, 4, 6, 8, 12, 16});
    const std::int32_t q_len = dice.between(1, std::min(64, 256 / group));
    AttentionCase c = short_case(dice.one_of({DType::bf16, DType::f16}), group, q_len);
    c.seed = seed;
    c.num_kv_heads = dice.between(1, 4);
    c.block_size = 16 * dice.one_of({1, 2, 3, 4, 8});
    c.has_sinks = dice.once_in(3);
    if (dice.once_in(3)) c.window_tokens = dice.between(1, 300);
    if (dice.once_in(4)) c.soft_cap = 20.0F;
    c.has_tree = c.soft_cap == 0.0F && dice.once_in(4);
    c.seq_lens.resize(static_cast<std::size_t>(dice.between(1, 8)));
    c.q_counts.clear();
    for (std::int32_t& length : c.seq_lens) {
      length = dice.length(c.block_size, dice.once_in(16) ? 4000 : 600);
      if (length > 0) length = std::max(length, q_len);
      c.q_counts.push_back(dice.between(0, q_len));
    }
    c.q_counts[0] = q_len;
    cases.push_back(c);
  }
  expect_all_match(cases);
}

}  // namespace
}  // namespace kvarena::test
