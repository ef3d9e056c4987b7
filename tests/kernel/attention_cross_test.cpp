// Every dtype x head_dim x block size x group over ragged lengths, on both paths with 1, 2 and 3
// threads and both forms of table, against the reference; unowned slots are NaN.

#include "kernel/attention_case.hpp"

#include <gtest/gtest.h>

#include <array>
#include <tuple>

namespace kvarena::test {
namespace {

std::vector<CpuPath> paths() {
  if (best_cpu_path() == CpuPath::avx512) return {CpuPath::portable, CpuPath::avx512};
  return {CpuPath::portable};
}

std::string label(CpuPath path, std::int32_t threads) {
  return (path == CpuPath::avx512 ? "avx512, threads " : "portable, threads ") +
         std::to_string(threads);
}

// ThreadSanitizer is after the threads, not the arithmetic; the plain reference is slow under it.
#if defined(__SANITIZE_THREAD__)
constexpr std::array kBlockSizes{7, 16};
constexpr std::array kGroups{1, 4, 7};
constexpr std::uint64_t kRandomCases = 4;
#else
constexpr std::array kBlockSizes{1, 7, 16, 128};
constexpr std::array kGroups{1, 2, 4, 7, 8};
constexpr std::uint64_t kRandomCases = 25;
#endif

class AttentionCross : public testing::TestWithParam<std::tuple<DType, std::int32_t>> {};

TEST_P(AttentionCross, MatchesReference) {
  const auto [dtype, head_dim] = GetParam();
  std::uint64_t seed = 1000;
  for (const std::int32_t block_size : kBlockSizes) {
    for (const std::int32_t group : kGroups) {
      AttentionCase c;
      c.seed = ++seed;
      c.key_dtype = c.value_dtype = c.q_dtype = c.out_dtype = dtype;
      c.head_dim_k = c.head_dim_v = head_dim;
      c.block_size = block_size;
      c.group = group;
      c.num_kv_heads = group > 4 ? 1 : 2;
      c.seq_lens = {0, 1, block_size - 1, block_size, block_size + 1, 333};
      c.paged_table = seed % 2 == 0;
      c.block_major = seed % 3 != 0;
      const AttentionProblem problem(c);
      for (const CpuPath path : paths()) {
        for (const std::int32_t threads : {1, 2, 3}) {
          expect_close(problem, run_case(problem, problem.limits(threads, path), threads),
                       label(path, threads));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionCross,
                         testing::Combine(testing::Values(DType::f32, DType::f16, DType::bf16),
                                          testing::Values(64, 96, 128, 256, 80, 7)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_d" +
                                  std::to_string(std::get<1>(test.param));
                         });

// Chunked prefill, windows, soft caps, mixed dtypes, distinct or shared K and V, by seed.
class AttentionRandom : public testing::TestWithParam<std::uint64_t> {};

template <class T, std::size_t N>
T pick(std::uint64_t& state, const std::array<T, N>& values) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return values[(state >> 33) % N];
}

AttentionCase random_case(std::uint64_t seed) {
  constexpr std::array kTypes{DType::f32, DType::f16, DType::bf16};
  constexpr std::array kDims{7, 16, 33, 64, 80, 96, 128, 160};
  std::uint64_t s = seed * 7919;
  AttentionCase c;
  c.seed = seed;
  c.key_dtype = pick(s, kTypes);
  c.value_dtype = pick(s, kTypes);
  c.q_dtype = pick(s, kTypes);
  c.out_dtype = pick(s, kTypes);
  c.head_dim_k = pick(s, kDims);
  c.head_dim_v = pick(s, kDims);
  c.num_kv_heads = pick(s, std::array{1, 2, 3});
  c.group = pick(s, std::array{1, 2, 3, 4, 5, 6, 7, 8, 16, 40});
  c.block_size = pick(s, std::array{1, 3, 7, 16, 32, 128});
  c.window_tokens = pick(s, std::array{0, 0, 1, 5, 64, 100});
  c.soft_cap = pick(s, std::array{0.0F, 0.0F, 0.5F, 30.0F});
  c.has_sinks = pick(s, std::array{false, false, true});
  c.paged_table = pick(s, std::array{false, true});
  c.block_major = pick(s, std::array{false, true});
  if (c.head_dim_v <= c.head_dim_k && pick(s, std::array{false, true})) {
    c.value_aliases_key = true;
    c.value_dtype = c.key_dtype;
  }
  const bool ragged_q = pick(s, std::array{true, true, false});
  const std::int32_t rows = pick(s, std::array{1, 2, 3, 5});
  for (std::int32_t row = 0; row < rows; ++row) {
    const std::int32_t length = pick(s, std::array{0, 1, 2, 63, 64, 65, 127, 200, 513});
    c.seq_lens.push_back(length);
    if (!ragged_q) continue;
    const std::int32_t count = pick(s, std::array{0, 1, 2, 3, 8, 33, 70});
    c.q_counts.push_back(length == 0 ? count % 3 : std::min(count, length));
  }
  if (ragged_q && pick(s, std::array{false, false, true})) {
    c.has_tree = true;
    for (std::int32_t& count : c.q_counts) count = std::min(count, 64);
  }
  return c;
}

TEST_P(AttentionRandom, MatchesReference) {
  for (std::uint64_t i = 0; i < kRandomCases; ++i) {
    const AttentionProblem problem(random_case(GetParam() * 1000 + i));
    for (const CpuPath path : paths()) {
      const std::int32_t threads = 1 + static_cast<std::int32_t>(i % 3);
      expect_close(problem, run_case(problem, problem.limits(threads, path), threads),
                   label(path, threads));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AttentionRandom, testing::Range<std::uint64_t>(1, 9));

TEST(AttentionShapes, LargeHeadsOfMultiLatentAttention) {
  AttentionCase c;
  c.num_kv_heads = 1;
  c.group = 128;
  c.head_dim_k = 576;
  c.head_dim_v = 512;
  c.value_aliases_key = true;
  c.seq_lens = {100, 17};
  const AttentionProblem problem(c);
  for (const CpuPath path : paths()) {
    expect_close(problem, run_case(problem, problem.limits(2, path), 2), label(path, 2));
  }
}

TEST(AttentionShapes, OneLongSequenceAmongShortOnesIsSplit) {
  AttentionCase c;
  c.seq_lens = {3, 6000, 40, 0, 1};
  const AttentionProblem problem(c);
  for (const CpuPath path : paths()) {
    for (const std::int32_t threads : {2, 3, 8}) {
      expect_close(problem, run_case(problem, problem.limits(threads, path), threads),
                   label(path, threads));
    }
  }
}

TEST(AttentionShapes, EmptyRowsGiveZerosAndMinusInfinity) {
  AttentionCase c;
  c.seq_lens = {0, 0};
  const AttentionProblem problem(c);
  for (const CpuPath path : paths()) {
    const AttentionOutput output = run_case(problem, problem.limits(2, path), 2);
    for (const std::byte b : output.out) ASSERT_EQ(b, std::byte{0});
    for (const float lse : output.lse) ASSERT_EQ(lse, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace
}  // namespace kvarena::test
