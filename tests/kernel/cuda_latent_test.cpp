// Attention over latents on the GPU against the reference in double precision: ragged lengths and
// query counts, permuted blocks, NaN in every slot that no token owns, -1 in every table entry that
// no query token needs. Every case is run again over a spoiled workspace and other garbage in the
// pool, for the same bits.

#include "kernel/campaign.hpp"
#include "kernel/columns_problem.hpp"
#include "kernels/reference/element.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace kvarena::test {
namespace {

AttentionCase latent_case(DType dtype, std::int32_t heads, std::int32_t block_size,
                          std::int32_t q_len) {
  AttentionCase c;
  c.key_dtype = c.value_dtype = dtype;
  if (dtype == DType::fp8_e4m3) c.scales = ScaleKind::per_tensor;
  c.num_kv_heads = 1;
  c.group = heads;
  c.head_dim_k = kernels::kLatentDim;
  c.head_dim_v = kernels::kLatentValueDim;
  c.value_aliases_key = true;
  c.block_size = block_size;
  c.tile_order = dtype == DType::latent_fp8 ? TileOrder::rows : TileOrder::chunked;
  c.seq_lens = {0, q_len, 15, 16, 17, 63, 64, 65, 128, 129, 700};
  for (std::int32_t& length : c.seq_lens) {
    if (length > 0) length = std::max(length, q_len);
  }
  c.q_counts.assign(c.seq_lens.size(), q_len);
  return c;
}

/// The parameter is the type of the latents.
class CudaLatent : public CudaTest, public testing::WithParamInterface<DType> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    int major = 0;
    EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "the kernel is for compute capability 9.0";
  }
  /// Sums of products of fp8 with split queries keep about 14 bits of their largest term.
  static float lse_error() { return GetParam() == DType::latent_fp8 ? 2e-3F : 1e-4F; }
  void expect_matches(const AttentionProblem& problem) {
    const AttentionCase& c = problem.shape();
    ColumnsOptions options;
    if (c.seed % 7 == 3) options.num_sms = 5;
    if (c.seed % 5 == 2) options.first_q = 3;
    options.fixed_parts = c.seed % 4 == 1;
    ColumnsProblem device(problem, stream_, options);
    const AttentionOutput first = device.run();
    expect_close(problem, first, "latents", lse_error());
    EXPECT_TRUE(same_bytes(device.pool().download(), problem.pool())) << "the pool is only read";
    device.spoil_workspace();
    device.pool().upload(problem.pool_with(Poison::infinity));
    const AttentionOutput again = device.run(true);
    EXPECT_TRUE(same_bytes(first.out, again.out)) << "same tokens, same bits; " << to_string(c);
    EXPECT_EQ(first.lse, again.lse) << "same tokens, same bits; " << to_string(c);
  }
  void expect_all_match(const std::vector<AttentionCase>& cases) {
    for_each_problem(cases, [&](const AttentionProblem& problem) { expect_matches(problem); });
  }
};

TEST_P(CudaLatent, EveryNumberOfHeadsAndQueryTokens) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 0;
  for (const std::int32_t heads : {1, 2, 8, 16, 20, 32, 64, 128}) {
    for (const std::int32_t q_len : {1, 2, 3, 4, 7, 16, 64}) {
      AttentionCase c = latent_case(GetParam(), heads, 16 << (seed % 4), q_len);
      c.seed = ++seed;
      c.has_sinks = seed % 3 == 0;
      c.block_major = seed % 2 == 0;
      if (heads * q_len > 2048) c.seq_lens.back() = 200;
      if (is_picked(seed)) cases.push_back(c);
    }
  }
  expect_all_match(cases);
}

TEST_P(CudaLatent, RowsHaveTheirOwnNumberOfQueryTokens) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 1000;
  for (const std::int32_t heads : {4, 16, 64}) {
    AttentionCase c = latent_case(GetParam(), heads, 32, 16);
    c.seed = ++seed;
    c.seq_lens = {40, 0, 300, 16, 0, 17, 129, 5, 64};
    c.q_counts = {3, 4, 16, 16, 0, 0, 1, 5, 9};
    cases.push_back(c);
  }
  expect_all_match(cases);
}

TEST_P(CudaLatent, LongAndManyRowsAreSplitAndCombined) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 2000;
  for (const std::int32_t heads : {16, 32, 128}) {
    AttentionCase c = latent_case(GetParam(), heads, 16, 2);
    c.seed = ++seed;
    c.seq_lens = {is_watched() ? 2000 : 20000};
    c.q_counts = {2};
    cases.push_back(c);
    c.seed = ++seed;
    c.seq_lens.assign(is_watched() ? 40 : 300, 60);
    c.seq_lens[33] = is_watched() ? 1000 : 6000;
    c.q_counts.assign(c.seq_lens.size(), 1);
    cases.push_back(c);
  }
  expect_all_match(cases);
}

// Thread blocks have many short rows one after another.
TEST_P(CudaLatent, ManyShortRows) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 2200;  // the second case has fixed parts, and a kernel of its own
  for (const std::int32_t heads : {16, 16, 20, 32, 64}) {
    AttentionCase c = latent_case(GetParam(), heads, 16, 1);
    c.seed = seed++;
    Dice dice(seed);
    c.seq_lens.resize(is_watched() ? 200 : 1000);
    for (std::int32_t& length : c.seq_lens) length = dice.between(1, dice.once_in(8) ? 400 : 90);
    c.q_counts.assign(c.seq_lens.size(), 1);
    cases.push_back(c);
  }
  expect_all_match(cases);
}

// Other engines may write scales that are no powers of two.
TEST_P(CudaLatent, ScalesOfAnyValue) {
  if (GetParam() != DType::latent_fp8) GTEST_SKIP() << "of latent_fp8";
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 2500;  // the second case has fixed parts, and a kernel of its own
  for (const std::int32_t heads : {8, 8, 16, 32, 64}) {
    AttentionCase c = latent_case(GetParam(), heads, 32, 2);
    c.seed = seed++;
    c.has_odd_scales = true;
    cases.push_back(c);
  }
  expect_all_match(cases);
}

// Scales may be as small or as large as these, and rows of zeros have none.
TEST_P(CudaLatent, MagnitudesAndRowsOfZeros) {
  if (GetParam() != DType::latent_fp8) GTEST_SKIP() << "of latent_fp8";
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 2700;
  for (const float magnitude : {0x1p-40F, 0x1p-10F, 1.0F, 0x1p10F}) {
    for (const std::int32_t heads : {16, 32, 64}) {
      AttentionCase c = latent_case(GetParam(), heads, 16, 1);
      c.seed = seed++;
      if (magnitude > 1.0F && heads < 64) continue;  // the next test has them
      c.latent_scale = magnitude;
      c.has_zero_rows = seed % 2 == 0;
      cases.push_back(c);
    }
  }
  expect_all_match(cases);
}

// With up to 32 columns a product keeps about 14 bits of its largest term. For logits up to 300 a
// model of it (scripts/model_fp8_sums.py) has errors of 0.2, and of 1e-2 of the outputs' norm.
TEST_P(CudaLatent, LargeLogitsKeepTheirLeadingBits) {
  if (GetParam() != DType::latent_fp8) GTEST_SKIP() << "of latent_fp8";
  for (const std::int32_t heads : {16, 32}) {
    AttentionCase c = latent_case(GetParam(), heads, 16, 1);
    c.latent_scale = 64.0F;
    c.has_zero_rows = true;
    const AttentionProblem problem(c);
    const AttentionOutput output = ColumnsProblem(problem, stream_).run();
    const L2Error error = l2_error(problem.exact(), output.out.data(), c.out_dtype);
    EXPECT_LE(error.of_output, 0.03 * error.norm) << heads << " heads";
    for (std::int64_t i = 0; i < problem.lse_elements(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (std::isinf(problem.exact_lse()[at])) {
        EXPECT_EQ(output.lse[at], problem.exact_lse()[at]) << heads << " heads, " << i;
      } else {
        EXPECT_NEAR(output.lse[at], problem.exact_lse()[at], 0.5F) << heads << " heads, " << i;
      }
    }
  }
}

// A scale that is finite, but not as f16, counts as what must not be multiplied with a weight of 0.
TEST_P(CudaLatent, AnUnseenTokenOfLargeScaleIsNotMultiplied) {
  if (GetParam() != DType::latent_fp8) GTEST_SKIP() << "of latent_fp8";
  for (const std::int32_t heads : {5, 10}) {
    AttentionCase c = latent_case(GetParam(), heads, 16, 3);
    c.seq_lens = {70};
    c.q_counts = {3};
    const AttentionProblem problem(c);
    ColumnsProblem device(problem, stream_);
    const AttentionOutput before = device.run();
    const AttentionArgs args = problem.args(nullptr, nullptr);
    const PlaneView& value = args.kv.value;
    const std::int64_t at =
        value.base - problem.pool().data() +
        element_offset(value, 1, args.batch.tables.block(0, 69 / 16).value, 0, 69 % 16, 0);
    for (const float scale : {0x1p67F, 0x1p76F, 0x1p100F}) {
      std::vector<std::byte> pool = problem.pool();
      kernels::reference::store_element(pool.data() + at + kLatentFp8ScalesAt, DType::f32, 1,
                                        scale);
      device.pool().upload(pool);
      const AttentionOutput after = device.run();
      // Two query tokens do not see it.
      for (std::int64_t i = 0; i < std::int64_t{2} * heads * kernels::kLatentValueDim; ++i) {
        ASSERT_NEAR(kernels::reference::load_element(before.out.data(), DType::bf16, i),
                    kernels::reference::load_element(after.out.data(), DType::bf16, i), 0.02)
            << "scale " << scale << ", element " << i;
      }
    }
  }
}

TEST_P(CudaLatent, DraftTrees) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 3000;
  for (const std::int32_t q_len : {2, 9, 33, 63, 64}) {
    AttentionCase c = latent_case(GetParam(), q_len > 16 ? 8 : 16, 16, q_len);
    c.seed = ++seed;
    c.has_tree = true;
    c.has_sinks = seed % 3 == 0;
    cases.push_back(c);
  }
  expect_all_match(cases);
}

// Rows of more query tokens than a run has are several rows for the kernel.
TEST_P(CudaLatent, PromptsOfSeveralRuns) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 4000;
  for (const std::int32_t heads : {1, 4, 16, 128}) {
    AttentionCase c = latent_case(GetParam(), heads, 32, 1);
    c.seed = ++seed;
    c.has_sinks = heads == 4;
    c.seq_lens = {300, 64, 200, 0, 70, 65, 900, 130};
    c.q_counts = {200, 64, 1, 0, 65, 65, 129, 0};
    if (heads == 128) {
      c.seq_lens = {90, 131, 70};
      c.q_counts = {65, 1, 0};
    }
    cases.push_back(c);
  }
  expect_all_match(cases);
}

// A row is cut and computed alike in every launch shape, so its bits do not depend on the batch.
TEST_P(CudaLatent, FixedPartsGiveARowTheSameBitsInEveryBatch) {
  for (const std::int32_t tokens : {1, 2}) {
    AttentionCase c = latent_case(GetParam(), 16, 16, tokens);
    c.seq_lens = {5000};
    c.q_counts = {tokens};
    c.has_sinks = true;
    ColumnsOptions options;
    options.fixed_parts = true;
    const AttentionProblem problem(c);
    ColumnsProblem alone(problem, stream_, options);
    const AttentionOutput first = alone.run();
    expect_close(problem, first, "alone", lse_error());
    for (const std::int32_t q_len : {1, 2, 3, 64}) {
      if (q_len < tokens) continue;
      options.q_len = q_len;
      ColumnsProblem other(problem, stream_, options);
      kernels::ColumnsScheduleParams& schedule = other.schedule;
      const DeviceArray<std::int64_t> offsets(std::vector<std::int64_t>{0, tokens});
      schedule.q_offsets = offsets.data();
      EXPECT_TRUE(same_bytes(other.run().out, first.out))
          << tokens << " tokens in a step with rows of " << q_len;
    }
  }
}

// The same for a prompt: its runs are not cut, whatever else is in the step. The first row of a
// problem has the same content whatever the others are.
TEST_P(CudaLatent, FixedPartsGiveAPromptTheSameBitsInEveryBatch) {
  for (const std::int32_t heads : {2, 16}) {
    AttentionCase c = latent_case(GetParam(), heads, 16, 1);
    c.seq_lens = {is_watched() ? 200 : 900};
    c.q_counts = {130};
    ColumnsOptions options;
    options.fixed_parts = true;
    const AttentionProblem problem(c);
    ColumnsProblem alone(problem, stream_, options);
    const AttentionOutput first = alone.run();
    expect_close(problem, first, "alone", lse_error());
    c.seq_lens = {c.seq_lens[0], 300, 5, 150};
    c.q_counts = {130, 64, 1, 100};
    const AttentionProblem more(c);
    ColumnsProblem beside(more, stream_, options);
    AttentionOutput all = beside.run();
    expect_close(more, all, "beside others", lse_error());
    options.num_sms = 7;
    ColumnsProblem narrow(more, stream_, options);
    EXPECT_TRUE(same_bytes(narrow.run().out, all.out)) << "fewer multiprocessors";
    all.out.resize(first.out.size());
    EXPECT_TRUE(same_bytes(all.out, first.out)) << "alone and beside others";
  }
}

// A column never gets what a token that it does not see holds, although others of the product do.
TEST_P(CudaLatent, ATokenThatIsNotSeenIsNotMultiplied) {
  for (const std::int32_t heads : {5, 10, 16, 32, 64}) {
    AttentionCase c = latent_case(GetParam(), heads, 16, 3);
    c.seq_lens = {70, 130};
    c.q_counts = {3, 3};
    const AttentionProblem problem(c);
    ColumnsProblem device(problem, stream_);
    const AttentionOutput before = device.run();
    // The last token of each row becomes NaN in V, and only the last query token sees it.
    const AttentionArgs args = problem.args(nullptr, nullptr);
    std::vector<std::byte> pool = problem.pool();
    for (std::int32_t row = 0; row < 2; ++row) {
      const std::int32_t token = c.seq_lens[static_cast<std::size_t>(row)] - 1;
      const PlaneView& value = args.kv.value;
      const bool is_bf16 = GetParam() == DType::bf16;
      const std::int64_t at =
          value.base - problem.pool().data() +
          element_offset(value, is_bf16 ? 2 : 1, args.batch.tables.block(row, token / 16).value, 0,
                         token % 16, 7);
      kernels::reference::store_element(pool.data() + at, is_bf16 ? DType::bf16 : DType::fp8_e4m3,
                                        0, std::numeric_limits<float>::quiet_NaN());
    }
    device.pool().upload(pool);
    const AttentionOutput after = device.run();
    const auto token_bytes = static_cast<std::size_t>(device.bytes_of_out());
    for (std::size_t token = 0; token < 6; ++token) {
      const auto begin = static_cast<std::ptrdiff_t>(token * token_bytes);
      const auto end = begin + static_cast<std::ptrdiff_t>(token_bytes);
      const std::vector<std::byte> was(before.out.begin() + begin, before.out.begin() + end);
      const std::vector<std::byte> is(after.out.begin() + begin, after.out.begin() + end);
      if (token % 3 == 2) {
        const float seen = kernels::reference::load_element(is.data(), DType::bf16, 7);
        EXPECT_TRUE(std::isnan(seen)) << "query token " << token << " sees it";
        continue;
      }
      for (std::size_t i = 0; i < was.size(); i += 2) {
        const auto value = [&](const std::vector<std::byte>& all) {
          return kernels::reference::load_element(all.data(), DType::bf16,
                                                  static_cast<std::int64_t>(i / 2));
        };
        ASSERT_NEAR(value(was), value(is), 0.02) << "query token " << token << ", " << i / 2;
      }
    }
  }
}

AttentionCase random_case(DType dtype, std::uint64_t seed) {
  Dice dice(seed);
  const std::int32_t heads = dice.one_of({1, 2, 4, 8, 12, 16, 20, 32, 40, 64, 128});
  const std::int32_t q_len = dice.between(1, std::min(64, std::max(1, 256 / heads)));
  AttentionCase c = latent_case(dtype, heads, 16 * dice.one_of({1, 2, 3, 4, 5, 8}), q_len);
  c.seed = seed;
  c.has_tree = dice.once_in(4);
  c.has_sinks = dice.once_in(3);
  c.block_major = dice.once_in(2);
  const bool is_ragged = dice.once_in(3);
  c.seq_lens.resize(static_cast<std::size_t>(dice.between(1, dice.once_in(8) ? 40 : 8)));
  c.q_counts.clear();
  for (std::int32_t& length : c.seq_lens) {
    length = dice.length(c.block_size, dice.once_in(16) ? 5000 : 600);
    if (length > 0) length = std::max(length, q_len);
    c.q_counts.push_back(is_ragged ? dice.between(0, q_len) : q_len);
  }
  c.q_counts[0] = q_len;
  return c;
}

TEST_P(CudaLatent, RandomShapes) {
  std::vector<AttentionCase> cases;
  for (int i = 0; i < rounds(200); ++i) {
    cases.push_back(random_case(GetParam(), first_seed() * 100000 + static_cast<std::uint64_t>(i)));
  }
  expect_all_match(cases);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaLatent,
                         testing::Values(DType::bf16, DType::fp8_e4m3, DType::latent_fp8),
                         [](const auto& type) { return std::string(name_of(type.param)); });

}  // namespace
}  // namespace kvarena::test
