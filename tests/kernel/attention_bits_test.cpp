// Results to the bit: whatever garbage lies in slots that a query does not see, whatever the form
// of the table, whichever worker was faster.

#include "kernel/attention_case.hpp"
#include "support/process_memory.hpp"

#include "base/half.hpp"
#include "kernels/reference/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace kvarena::test {
namespace {

void expect_same_bits(const AttentionOutput& a, const AttentionOutput& b, const std::string& what) {
  EXPECT_EQ(a.out, b.out) << what;
  ASSERT_EQ(a.lse.size(), b.lse.size());
  EXPECT_EQ(std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)), 0) << what;
}

std::vector<AttentionCase> cases() {
  AttentionCase decode;
  decode.seq_lens = {1, 15, 16, 17, 1700, 900};
  if (kSanitized) decode.seq_lens = {1, 15, 16, 17, 425, 225};
  AttentionCase prefill = decode;
  prefill.seed = 2;
  prefill.head_dim_k = prefill.head_dim_v = 80;
  prefill.key_dtype = prefill.value_dtype = DType::f16;
  prefill.block_size = 7;
  prefill.q_counts = {1, 4, 16, 0, 70, 1};
  AttentionCase window = prefill;
  window.seed = 3;
  window.window_tokens = 50;
  window.key_dtype = window.value_dtype = DType::f32;
  return {decode, prefill, window};
}

TEST(AttentionBits, DoNotDependOnUnownedSlots) {
  for (const AttentionCase& c : cases()) {
    for (const CpuPath path : {CpuPath::portable, best_cpu_path()}) {
      const AttentionProblem nan(c, Poison::nan);
      const AttentionProblem infinity(c, Poison::infinity);
      const AttentionProblem zero(c, Poison::zero);
      const AttentionOutput want = run_case(zero, zero.limits(2, path), 2);
      expect_same_bits(want, run_case(nan, nan.limits(2, path), 2), "nan " + to_string(c));
      expect_same_bits(want, run_case(infinity, infinity.limits(2, path), 2),
                       "inf " + to_string(c));
    }
  }
}

TEST(AttentionBits, DoNotDependOnTheFormOfTheTableOrOnStrides) {
  for (AttentionCase c : cases()) {
    for (const CpuPath path : {CpuPath::portable, best_cpu_path()}) {
      const AttentionProblem first(c);
      const AttentionOutput want = run_case(first, first.limits(2, path), 2);
      AttentionCase other = c;
      other.paged_table = true;
      other.block_major = false;
      const AttentionProblem second(other);
      expect_same_bits(want, run_case(second, second.limits(2, path), 2), to_string(c));
    }
  }
}

TEST(AttentionBits, OfARowDoNotDependOnTheBatchWhenTheLimitsSaySo) {
  for (const AttentionCase& c : cases()) {
    if (c.q_counts.empty()) continue;
    const AttentionProblem problem(c);
    for (const std::int32_t threads : {1, 3}) {
      AttentionLimits limits = problem.limits(threads, CpuPath::best);
      limits.batch_invariant = true;
      const AttentionOutput all = run_case(problem, limits, threads);
      for (std::size_t row = 0; row < c.seq_lens.size(); ++row) {
        const AttentionOutput alone =
            run_case(problem, limits, threads, static_cast<std::int32_t>(row));
        const std::int64_t heads = c.num_kv_heads * c.group;
        const std::int64_t bytes = heads * c.head_dim_v * bytes_of(c.out_dtype);
        const auto first = static_cast<std::size_t>(problem.q_offsets()[row] * bytes);
        const auto count = static_cast<std::size_t>(c.q_counts[row] * bytes);
        EXPECT_EQ(std::memcmp(all.out.data() + first, alone.out.data() + first, count), 0)
            << "row " << row << ", " << to_string(c);
      }
    }
  }
}

TEST(AttentionBits, DoNotDependOnTheNumberOfWorkersOrTheRun) {
  for (const AttentionCase& c : cases()) {
    const AttentionProblem problem(c);
    const AttentionLimits limits = problem.limits(4, CpuPath::best);
    const AttentionOutput want = run_case(problem, limits, 1);
    for (const std::int32_t workers : {1, 2, 3, 4, 4, 4}) {
      expect_same_bits(want, run_case(problem, limits, workers), to_string(c));
    }
  }
}

// With a window, blocks that no query token sees may be gone: their entries are never read.
TEST(AttentionBits, EntriesBeforeTheWindowAreNotRead) {
  AttentionCase c;
  c.seq_lens = {1000};
  c.window_tokens = 40;
  AttentionProblem problem(c);
  for (std::size_t j = 0; j < (1000 - 40) / 16; ++j) problem.entries()[j] = kNoBlock;
  for (const CpuPath path : {CpuPath::portable, best_cpu_path()}) {
    expect_close(problem, run_case(problem, problem.limits(2, path), 2), "window");
  }
}

// A token that one query token sees and another does not may hold anything.
TEST(AttentionBits, FutureTokensAreNotMultiplied) {
  AttentionCase c;
  c.seq_lens = {20};
  c.q_counts = {3};
  c.num_kv_heads = 1;
  c.group = 1;
  c.out_dtype = DType::f32;
  const AttentionProblem problem(c);
  for (const CpuPath path : {CpuPath::portable, best_cpu_path()}) {
    AttentionOutput output = run_case(problem, problem.limits(1, path), 1);
    const AttentionArgs args = problem.args(output.out.data(), output.lse.data());
    const std::int64_t block = args.batch.tables.block(0, 1).value;
    std::byte* last =
        args.kv.value.base + block * args.kv.value.block_stride + 3 * args.kv.value.token_stride;
    std::vector<std::byte> saved(last, last + args.kv.value.token_stride);
    for (std::int32_t d = 0; d < c.head_dim_v; ++d)
      store_f32(last, c.value_dtype, d, std::nanf(""));
    const AttentionOutput spoiled = run_case(problem, problem.limits(1, path), 1);
    std::copy(saved.begin(), saved.end(), last);
    for (std::int64_t i = 0; i < 2 * c.head_dim_v; ++i) {
      EXPECT_EQ(load_f32(spoiled.out.data(), DType::f32, i),
                load_f32(output.out.data(), DType::f32, i));
    }
    EXPECT_TRUE(std::isnan(load_f32(spoiled.out.data(), DType::f32, 2 * c.head_dim_v)));
  }
}

// The reference itself: paged through a permuted table equals contiguous over the same tokens.
TEST(AttentionReference, PagedEqualsContiguous) {
  AttentionCase c;
  c.seq_lens = {77};
  c.q_counts = {9};
  c.window_tokens = 30;
  c.soft_cap = 5.0F;
  c.head_dim_v = 24;
  const AttentionProblem problem(c);
  const AttentionArgs args = problem.args(nullptr, nullptr);
  const auto gather = [&](const PlaneView& plane) {
    std::vector<std::byte> flat;
    for (std::int32_t token = 0; token < 77; ++token) {
      for (std::int32_t head = 0; head < c.num_kv_heads; ++head) {
        const std::byte* row = plane.base +
                               args.batch.tables.block(0, token / 16).value * plane.block_stride +
                               head * plane.head_stride + (token % 16) * plane.token_stride;
        flat.insert(flat.end(), row, row + plane.head_dim * bytes_of(plane.dtype));
      }
    }
    return flat;
  };
  const std::vector<std::byte> key = gather(args.kv.key);
  const std::vector<std::byte> value = gather(args.kv.value);
  std::vector<float> out(static_cast<std::size_t>(problem.out_elements()));
  std::vector<float> lse(static_cast<std::size_t>(problem.lse_elements()));
  kernels::reference::attention_contiguous({key.data(), value.data(), args.q, out.data(),
                                            lse.data(), 77, 9, args.num_q_heads, c.num_kv_heads,
                                            c.head_dim_k, c.head_dim_v, c.window_tokens, args.scale,
                                            c.soft_cap, c.key_dtype, c.q_dtype, DType::f32});
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], static_cast<float>(problem.exact()[i])) << i;
  }
  EXPECT_EQ(lse, problem.exact_lse());
}

// By hand: two tokens with logits 0 and ln 3 weigh 1/4 and 3/4.
TEST(AttentionReference, HandWorkedExample) {
  const std::vector<float> key{0.0F, std::log(3.0F)};
  const std::vector<float> value{4.0F, 8.0F};
  const float q = 1.0F;
  float out = 0.0F;
  float lse = 0.0F;
  kernels::reference::attention_contiguous({key.data(), value.data(), &q, &out, &lse, 2, 1, 1, 1, 1,
                                            1, 0, 1.0F, 0.0F, DType::f32, DType::f32, DType::f32});
  EXPECT_NEAR(out, 7.0F, 1e-6F);
  EXPECT_NEAR(lse, std::log(4.0F), 1e-6F);
}

}  // namespace
}  // namespace kvarena::test
