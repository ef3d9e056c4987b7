// What the columns kernel promises besides right sums: a token that a query token does not see does
// not reach its output, whatever K and V hold there.

#include "kernel/campaign.hpp"
#include "kernel/columns_problem.hpp"
#include "kernels/reference/element.hpp"
#include "kvarena/base/tile_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace kvarena::test {
namespace {

using kernels::reference::load_element;
using kernels::reference::store_element;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Elements first .. end - 1 of a token of row 0, in all heads; `token` is counted from the first
/// query token.
struct Spoiled {
  std::int32_t token;
  std::int32_t first;
  std::int32_t end;
  float value;
};

std::string to_string(const Spoiled& s) {
  return "token " + std::to_string(s.token) + ", dims " + std::to_string(s.first) + " to " +
         std::to_string(s.end) + ", value " + std::to_string(s.value);
}

class CudaColumnsPromises : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    int major = 0;
    EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "the kernel is for compute capability 9.0";
  }

  /// Three rows of `q_len` query tokens each.
  static AttentionCase case_of(std::uint64_t seed, std::int32_t dim, std::int32_t q_len,
                               std::int32_t group) {
    AttentionCase c;
    c.seed = seed;
    const DType dtype = seed % 2 == 0 ? DType::bf16 : DType::f16;
    const bool is_fp8 = seed / 2 % 2 == 1 && has_instance(DType::fp8_e4m3, dim);
    set_types(c, is_fp8 ? DType::fp8_e4m3 : dtype, seed / 4);
    c.head_dim_k = c.head_dim_v = dim;
    c.tile_order = TileOrder::chunked;
    c.group = group;
    c.has_sinks = seed % 3 == 1;
    c.block_major = seed % 4 < 2;
    c.seq_lens = {700 + static_cast<std::int32_t>(seed % 50), 400, 3 * q_len};
    c.q_counts.assign(3, q_len);
    return c;
  }

  static void spoil(const AttentionProblem& problem, std::vector<std::byte>& pool, PlaneKind kind,
                    const Spoiled& s) {
    const AttentionArgs a = problem.args(nullptr, nullptr);
    const PlaneView& plane = kind == PlaneKind::key ? a.kv.key : a.kv.value;
    const bool is_fp8 = plane.dtype == DType::fp8_e4m3;  // it has no infinity
    const AttentionCase& c = problem.shape();
    const std::int32_t token = c.seq_lens[0] - c.q_counts[0] + s.token;
    const std::int64_t block = a.batch.tables.block(0, token / c.block_size).value;
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      for (std::int32_t d = s.first; d < s.end; ++d) {
        const std::int64_t at =
            (plane.base - problem.pool().data()) +
            element_offset(plane, is_fp8 ? 1 : 2, block, head, token % c.block_size, d);
        store_element(pool.data() + at, plane.dtype, 0, is_fp8 ? kNaN : s.value);
      }
    }
  }

  /// Returns whether query token `query` of row 0 sees a token.
  static bool sees(const AttentionProblem& problem, std::int32_t query, std::int32_t token) {
    std::uint64_t path = ~std::uint64_t{0} >> (63 - query);
    if (!problem.tree_masks().empty()) {
      path &= problem.tree_masks()[static_cast<std::size_t>(query)] | std::uint64_t{1} << query;
    }
    const std::int32_t window = problem.shape().window_tokens;
    const std::int32_t length = std::popcount(path);
    if (token < 0) return window == 0 || length - token <= window;
    for (std::int32_t left = length; window > 0 && left > window; --left) path &= path - 1;
    return (path >> token & 1) != 0;
  }

  /// Query tokens that do not see the token are exact, and the spoiled dims of those that do are
  /// not finite.
  static void expect_only_seen(const AttentionProblem& problem, const AttentionOutput& output,
                               const Spoiled& s, const std::string& what) {
    const AttentionCase& c = problem.shape();
    const std::int64_t elements = std::int64_t{c.num_kv_heads} * c.group * c.head_dim_v;
    std::vector<double> exact;
    std::vector<std::byte> got;
    std::int32_t seen = 0;
    for (std::int64_t query = 0; query < problem.q_offsets().back(); ++query) {
      const bool is_seen =
          query < c.q_counts[0] && sees(problem, static_cast<std::int32_t>(query), s.token);
      const auto first = static_cast<std::ptrdiff_t>(query * elements);
      if (is_seen) {
        ++seen;
        for (std::int64_t i = first; i < first + elements; ++i) {
          const auto dim = static_cast<std::int32_t>(i % c.head_dim_v);
          if (dim < s.first || dim >= s.end) continue;
          ASSERT_FALSE(std::isfinite(load_element(output.out.data(), c.out_dtype, i)))
              << what << ", query token " << query << "; " << test::to_string(c);
        }
      } else {
        const auto end = static_cast<std::ptrdiff_t>(first + elements);
        exact.insert(exact.end(), problem.exact().begin() + first, problem.exact().begin() + end);
        got.insert(got.end(), output.out.begin() + first * 2, output.out.begin() + end * 2);
      }
    }
    EXPECT_GT(seen, 0) << what;
    EXPECT_LT(seen, c.q_counts[0]) << what;
    const L2Error error = l2_error(exact, got.data(), c.out_dtype);
    EXPECT_TRUE(error.of_output <= error.bound(c.out_dtype))
        << what << ": L2 error " << error.of_output << " > " << error.bound(c.out_dtype) << "; "
        << test::to_string(c);
  }

  /// Spoils V, and K too if `has_key`, and runs with few and with many cuts.
  void expect_promise(const AttentionCase& c, const Spoiled& s, bool has_key) {
    const AttentionProblem problem(c);
    std::vector<std::byte> pool = problem.pool();
    spoil(problem, pool, PlaneKind::value, s);
    if (has_key) spoil(problem, pool, PlaneKind::key, s);
    ColumnsOptions options;
    for (const std::int32_t num_sms : {132, 1}) {
      for (const bool fixed_parts : {false, true}) {
        for (const std::int32_t shared_rows : {0, 3}) {
          options.num_sms = num_sms;
          options.fixed_parts = fixed_parts;
          options.shared_rows = shared_rows;
          ColumnsProblem device(problem, stream_, options);
          device.pool().upload(pool);
          expect_only_seen(problem, device.run(), s,
                           to_string(s) + ", multiprocessors " + std::to_string(num_sms) +
                               (fixed_parts ? ", fixed parts" : "") +
                               (shared_rows > 0 ? ", shared" : ""));
          device.expect_counters_at_rest();
        }
      }
    }
  }
};

// Tokens of the step itself, and tokens that leave the window from one query token to the next.
TEST_F(CudaColumnsPromises, ATokenThatIsNotSeenIsNotMultiplied) {
  std::uint64_t seed = 100;
  for (const std::int32_t dim : {64, 80, 96, 128, 192, 256}) {
    for (const bool is_wide : {false, true}) {
      for (const std::int32_t window : {0, 25, 200}) {
        for (const float value : {kInfinity, -kInfinity, kNaN}) {
          const std::int32_t q_len = is_wide ? 30 : 20;
          AttentionCase c = case_of(++seed, dim, q_len, is_wide ? 4 : 3);
          c.window_tokens = window;
          c.soft_cap = seed % 5 == 0 ? 4.0F : 0.0F;
          if (!is_picked(seed)) continue;
          const Spoiled all{q_len / 3, 0, dim, value};
          const Spoiled some{q_len - 1, 5, 9, value};
          expect_promise(c, seed % 2 == 0 ? all : some, seed % 4 == 0);
          if (window == 0) continue;
          expect_promise(c, {q_len / 2 + 1 - window, dim - 11, dim, value}, false);
        }
      }
    }
  }
}

TEST_F(CudaColumnsPromises, ATokenOfAnotherBranchIsNotMultiplied) {
  std::uint64_t seed = 500;
  for (const std::int32_t dim : {64, 80, 96, 128, 192, 256}) {
    for (const bool is_wide : {false, true}) {
      for (const std::int32_t window : {0, 60}) {
        const std::int32_t q_len = is_wide ? 32 : 16;
        AttentionCase c = case_of(++seed, dim, q_len, 4);
        c.has_tree = true;
        c.window_tokens = window;
        if (!is_picked(seed)) continue;
        for (const std::int32_t token : {1, q_len / 2, q_len - 1}) {
          expect_promise(c, {token, 0, token % 2 == 0 ? dim : 3, kNaN}, token == 1);
        }
      }
    }
  }
}

// The rows share a prefix, and their own tokens are few.
TEST_F(CudaColumnsPromises, ATokenAfterASharedPrefix) {
  for (const std::int32_t dim : {64, 128, 256}) {
    AttentionCase c = case_of(static_cast<std::uint64_t>(900 + dim), dim, 4, 8);
    c.shared_blocks = {{1, 0, 0, 96}};
    c.seq_lens = {1545, 1550, 300};
    expect_promise(c, {2, 0, dim, kInfinity}, false);
  }
}

}  // namespace
}  // namespace kvarena::test
