// What prefill promises besides right sums, on every kernel: small weights count, unseen tokens
// reach nobody, and rows of other kernels stay as they are.

#include "kernel/campaign.hpp"
#include "kernel/prefill_problem.hpp"
#include "kernels/reference/element.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace kvarena::test {
namespace {

using kernels::reference::load_element;
using kernels::reference::store_element;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using CudaPrefillPromises = CudaTest;

/// A case that the Hopper kernel takes. `seed` picks its options.
AttentionCase case_of(std::uint64_t seed, DType dtype, std::int32_t dim) {
  AttentionCase c;
  c.seed = seed;
  c.key_dtype = c.value_dtype = c.q_dtype = c.out_dtype = dtype;
  c.head_dim_k = c.head_dim_v = dim;
  c.tile_order = TileOrder::chunked;
  c.soft_cap = seed % 4 == 2 ? 3.0F : 0.0F;
  c.has_sinks = seed % 3 == 1;
  c.block_major = seed % 2 == 0;
  return c;
}

/// Sets elements `first` .. `end` - 1 of a token of row 0, in all heads.
void set_token(AttentionProblem& problem, std::vector<std::byte>& pool, PlaneKind kind,
               std::int32_t token, float value, std::int32_t first, std::int32_t end) {
  const kernels::AttentionParams p = problem.params();
  const PlaneView& plane = kind == PlaneKind::key ? p.kv.key : p.kv.value;
  const std::int64_t block = p.batch.tables.block(0, token / p.kv.block_size).value;
  for (std::int32_t head = 0; head < plane.num_heads; ++head) {
    for (std::int32_t d = first; d < end; ++d) {
      const std::int64_t at = plane.base - problem.pool().data() +
                              element_offset(plane, 2, block, head, token % p.kv.block_size, d);
      store_element(pool.data() + at, plane.dtype, 0, value);
    }
  }
}

/// Query tokens first .. end - 1 of row 0 are close to the exact answer.
void expect_close_tokens(const AttentionProblem& problem, const AttentionOutput& output,
                         std::int32_t first, std::int32_t end, const std::string& what) {
  const AttentionCase& c = problem.shape();
  const std::int64_t token = std::int64_t{c.num_kv_heads} * c.group * c.head_dim_v;
  const auto at = static_cast<std::size_t>(first * token);
  const auto count = static_cast<std::size_t>((end - first) * token);
  const L2Error error = l2_error(std::span(problem.exact()).subspan(at, count),
                                 output.out.data() + at * 2, c.out_dtype);
  EXPECT_TRUE(error.of_output <= error.bound(c.out_dtype))
      << what << ": L2 error " << error.of_output << " > " << error.bound(c.out_dtype) << "; "
      << to_string(c);
}

// Query tokens of one tile: those that do not see a token with NaN or infinity in V are exact, and
// only those. The kernels for every GPU promise the same.
TEST_F(CudaPrefillPromises, ATokenThatIsNotSeenIsNotMultiplied) {
  std::uint64_t seed = 2000;
  for (const std::int32_t dim : {64, 80, 96, 128, 192, 256}) {
    for (const std::int32_t window : {0, 25}) {
      for (const float value : {kInfinity, -kInfinity, kNaN}) {
        ++seed;
        AttentionCase c = case_of(seed, seed % 2 == 0 ? DType::bf16 : DType::f16, dim);
        c.window_tokens = window;
        c.seq_lens = {150, 40};
        c.q_counts = {60, 40};
        c.group = 2;
        AttentionProblem problem(c);
        PrefillProblem device(problem, stream_);
        constexpr std::int32_t kSeenBy = 21;  // the first query token that sees the token
        const std::int32_t token = c.seq_lens[0] - c.q_counts[0] + kSeenBy;
        std::vector<std::byte> pool = problem.pool();
        const bool has_all = seed % 3 == 0;
        set_token(problem, pool, PlaneKind::value, token, value, has_all ? 0 : 5,
                  has_all ? dim : 9);
        device.pool().upload(pool);
        for (const std::int32_t capability : {device.params.compute_capability, 0}) {
          device.params.compute_capability = capability;
          const AttentionOutput output = device.run();
          const std::string what =
              "capability " + std::to_string(capability) + ", value " + std::to_string(value);
          expect_close_tokens(problem, output, 0, kSeenBy, what);
          const std::int32_t leaves = window > 0 ? kSeenBy + window : c.q_counts[0];
          expect_close_tokens(problem, output, leaves, c.q_counts[0] + c.q_counts[1], what);
          const float seen =
              load_element(output.out.data(), c.out_dtype,
                           std::int64_t{kSeenBy} * c.num_kv_heads * c.group * dim + 5);
          EXPECT_FALSE(std::isfinite(seen)) << what;
        }
      }
    }
  }
}

// One token has 99 % of the weight and a value of 0; the others have a weight of 3e-7 of it each
// and a value of 1.
TEST_F(CudaPrefillPromises, WeightsFarBelowTheLargestOneCount) {
  constexpr std::int32_t kTokens = 32768;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    AttentionCase c = case_of(0, dtype, 64);
    c.seq_lens = {kTokens};
    c.q_counts = {1};
    c.num_kv_heads = 1;
    c.group = 1;
    AttentionProblem problem(c);
    PrefillProblem device(problem, stream_);
    std::vector<std::byte> pool = problem.pool();
    for (std::int32_t token = 0; token < kTokens; ++token) {
      set_token(problem, pool, PlaneKind::key, token, token == 5000 ? 1.0F : 0.0F, 0, 64);
      set_token(problem, pool, PlaneKind::value, token, token == 5000 ? 0.0F : 1.0F, 0, 64);
    }
    device.pool().upload(pool);
    std::vector<std::byte> q(problem.q().size());
    for (std::int32_t d = 0; d < 64; ++d) {
      store_element(q.data(), dtype, d, 0.25F);
    }
    const DeviceArray<std::byte> queries(q);
    device.params.attention.q = queries.data();
    device.params.attention.scale = 15.0F / 16.0F;  // the logit of token 5000 is 15
    const double others = kTokens - 1;
    const double share = others / (others + std::exp(15.0));
    for (const std::int32_t capability : {device.params.compute_capability, 0}) {
      device.params.compute_capability = capability;
      const AttentionOutput output = device.run();
      for (std::int32_t d = 0; d < 64; ++d) {
        EXPECT_NEAR(load_element(output.out.data(), dtype, d), share, share * 6e-3)
            << name_of(dtype) << ", capability " << capability;
      }
      EXPECT_NEAR(output.lse[0], std::log(others + std::exp(15.0)), 1e-4) << name_of(dtype);
    }
  }
}

// Rows of other kernels and skipped rows lie between the others. Their outputs are not written.
TEST_F(CudaPrefillPromises, RowsOfOtherKernelsAreLeftAlone) {
  for (const int rows : {9, 50}) {
    AttentionCase c = case_of(12, DType::bf16, 128);
    std::vector<std::int32_t> slots;
    for (int row = 0; row < rows; ++row) {
      c.seq_lens.push_back(30 + row * 7);
      c.q_counts.push_back(row % 3 == 0 ? 4 : 20);
      slots.push_back(row % 5 == 1 ? -1 : row);
    }
    AttentionProblem problem(c);
    PrefillProblem device(problem, stream_);
    const AttentionOutput all = device.run();
    const DeviceArray<std::int32_t> row_slots(slots);
    device.params.row_slots = row_slots.data();
    device.params.min_q_len = 5;
    for (const std::int32_t capability : {device.params.compute_capability, 0}) {
      device.params.compute_capability = capability;
      const AttentionOutput some = device.run();
      const auto token = static_cast<std::size_t>(c.num_kv_heads * c.group * c.head_dim_v * 2);
      std::size_t at = 0;
      for (std::size_t row = 0; row < slots.size(); ++row) {
        const std::size_t bytes = static_cast<std::size_t>(c.q_counts[row]) * token;
        const bool is_served = slots[row] >= 0 && c.q_counts[row] > 4;
        const std::span<const std::byte> got(some.out.data() + at, bytes);
        if (!is_served) {
          EXPECT_TRUE(std::ranges::all_of(got, [](std::byte b) { return b == std::byte{0xFF}; }))
              << row;
        } else if (capability != 0) {
          EXPECT_TRUE(std::ranges::equal(got, std::span(all.out.data() + at, bytes))) << row;
        } else {
          EXPECT_FALSE(std::ranges::all_of(got, [](std::byte b) { return b == std::byte{0xFF}; }))
              << row;
        }
        at += bytes;
      }
    }
  }
}

// One row of 16 tokens, K and V of ones: only the scales tell the tokens apart.
TEST_F(CudaPrefillPromises, AScaleForEachTokenIsTheOnlyOne) {
  constexpr std::int32_t kTokens = 16;
  constexpr std::int32_t kDim = 64;
  constexpr std::int64_t kElements = std::int64_t{kTokens} * kDim;
  constexpr std::int64_t kPlaneBytes = kElements + kTokens * 4;
  std::vector<std::byte> pool(2 * kPlaneBytes, std::byte{0x38});  // 1 in e4m3
  double weights = 0.0;
  double values = 0.0;
  for (std::int32_t token = 0; token < kTokens; ++token) {
    const float key = token % 3 == 0 ? 0.5F : 0.25F;
    const auto value = static_cast<float>(token + 1);
    store_element(pool.data() + kElements, DType::f32, token, key);
    store_element(pool.data() + kPlaneBytes + kElements, DType::f32, token, value);
    const double weight = std::exp(double{key} * kDim / 16);
    weights += weight;
    values += weight * value;
  }
  const DeviceArray<std::byte> planes(pool);
  const DeviceArray<float> q(std::vector<float>(kDim, 1.0F));
  const DeviceArray<float> wrong(std::vector<float>{7.0F});
  const DeviceArray<std::int64_t> offsets(std::vector<std::int64_t>{0, 1});
  const DeviceArray<std::int32_t> lengths(std::vector<std::int32_t>{kTokens});
  const DeviceArray<BlockId> table(std::vector<BlockId>{BlockId(0)});
  const DeviceArray<float> out(std::vector<float>(kDim, 0.0F));
  kernels::PrefillParams params{};
  kernels::AttentionParams& a = params.attention;
  a.kv.key = {planes.data(), kPlaneBytes,     kElements,       kDim,     1,
              kDim,          DType::fp8_e4m3, TileOrder::rows, kElements};
  a.kv.value = a.kv.key;
  a.kv.value.base += kPlaneBytes;
  a.kv.block_size = kTokens;
  a.kv.num_blocks = 1;
  a.batch.tables.entries = table.data();
  a.batch.tables.row_offsets = offsets.data();
  a.batch.tables.num_rows = a.batch.num_rows = 1;
  a.batch.seq_lens = lengths.data();
  a.q_offsets = offsets.data();
  a.q = q.data();
  a.out = out.data();
  a.num_q_heads = 1;
  a.scale = 1.0F / 16;
  a.q_dtype = a.out_dtype = DType::f32;
  a.scales = {wrong.data(), wrong.data(), false};
  params.total_q = 1;
  params.num_prompts = 1;
  EXPECT_OK(kernels::launch_prefill(params, stream_));
  EXPECT_CUDA(cudaStreamSynchronize(stream_));
  for (const float x : out.download()) EXPECT_NEAR(x, values / weights, 1e-4);
}

}  // namespace
}  // namespace kvarena::test
