// What decode promises besides right sums: small weights count, unseen tokens reach nobody, skipped
// rows stay as they are, and a launch ends wherever it runs.

#include "kernel/campaign.hpp"
#include "kernel/decode_problem.hpp"
#include "kernels/decode/decode_shape.h"
#include "kernels/reference/element.hpp"
#include "kvarena/base/tile_order.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvarena::test {
namespace {

using kernels::reference::load_element;
using kernels::reference::store_element;

class CudaDecodePromises : public CudaTest {
 protected:
  static AttentionCase case_of(DType dtype, std::int32_t head_dim,
                               std::vector<std::int32_t> lengths, std::int32_t q_len = 1) {
    AttentionCase c;
    c.q_dtype = c.out_dtype = dtype == DType::fp8_e4m3 ? DType::bf16 : dtype;
    c.key_dtype = c.value_dtype = dtype;
    c.head_dim_k = c.head_dim_v = head_dim;
    c.tile_order = TileOrder::chunked;
    c.seq_lens = std::move(lengths);
    if (q_len > 1) c.q_counts.assign(c.seq_lens.size(), q_len);
    return c;
  }
  /// Sets all elements of a token in a copy of a problem's pool, in all heads.
  static void set_token(const AttentionProblem& problem, std::vector<std::byte>& pool,
                        PlaneKind kind, std::int32_t row, std::int32_t token, float value) {
    const AttentionArgs a = problem.args(nullptr, nullptr);
    const PlaneView& plane = kind == PlaneKind::key ? a.kv.key : a.kv.value;
    const std::int64_t block = a.batch.tables.block(row, token / a.kv.block_size).value;
    const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      for (std::int32_t d = 0; d < plane.head_dim; ++d) {
        const std::int64_t at =
            (plane.base - problem.pool().data()) +
            element_offset(plane, bytes, block, head, token % a.kv.block_size, d);
        store_element(pool.data() + at, plane.dtype, 0, value);
      }
    }
  }
  /// Bytes of the output of one query token.
  static std::span<const std::byte> token_of(const AttentionProblem& problem,
                                             const AttentionOutput& output, std::int64_t token) {
    const AttentionCase& c = problem.shape();
    const auto size =
        static_cast<std::size_t>(c.num_kv_heads * c.group * c.head_dim_v * bytes_of(c.out_dtype));
    return std::span(output.out).subspan(static_cast<std::size_t>(token) * size, size);
  }
  static bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
    return std::ranges::equal(a, b);
  }
};

// One token has 99 % of the weight and a value of 0; the others have a weight of 3e-7 of it each
// and a value of 1. Rounded to f16 as they are, such weights keep three bits.
TEST_F(CudaDecodePromises, WeightsFarBelowTheLargestOneCount) {
  constexpr std::int32_t kTokens = 32768;
  for (const DType dtype : {DType::f16, DType::fp8_e4m3, DType::bf16}) {
    AttentionCase c = case_of(dtype, 64, {kTokens});
    c.num_kv_heads = 1;
    c.group = 1;
    const AttentionProblem problem(c);
    std::vector<std::byte> pool = problem.pool();
    for (std::int32_t token = 0; token < kTokens; ++token) {
      set_token(problem, pool, PlaneKind::key, 0, token, token == 5000 ? 1.0F : 0.0F);
      set_token(problem, pool, PlaneKind::value, 0, token, token == 5000 ? 0.0F : 1.0F);
    }
    DecodeProblem device(problem, 1, stream_);
    device.pool().upload(pool);
    std::vector<std::byte> q(problem.q().size());
    for (std::int32_t d = 0; d < 64; ++d) store_element(q.data(), c.q_dtype, d, 0.25F);
    const DeviceArray<std::byte> queries(q);
    device.params.q = queries.data();
    device.params.scale = 15.0F / 16.0F;  // the logit of token 5000 is 15
    const AttentionOutput output = device.run();
    const double others = kTokens - 1;
    const double share = others / (others + std::exp(15.0));
    for (std::int32_t d = 0; d < 64; ++d) {
      EXPECT_NEAR(load_element(output.out.data(), c.out_dtype, d), share, share * 6e-3)
          << name_of(dtype);
    }
    EXPECT_NEAR(output.lse[0], std::log(others + std::exp(15.0)), 1e-4) << name_of(dtype);
  }
  finish();
}

// With more multiprocessors promised than there are, the parts of an item do not run at once.
TEST_F(CudaDecodePromises, NoPartWaitsForAnother) {
  AttentionCase c = case_of(DType::bf16, 128, {40000});
  c.num_kv_heads = 1;
  const AttentionProblem problem(c);
  DecodeProblem device(problem, 1, stream_, 4096);
  kernels::DecodeLimits limits = device.params.limits;
  for (const bool has_clusters : {false, limits.has_clusters}) {
    limits.has_clusters = has_clusters;
    device.set_limits(limits);
    EXPECT_EQ(kernels::decode_shape(limits).cluster > 1, has_clusters);
    expect_close(problem, device.run(), "on a small part of a device");
  }
  finish();
}

TEST_F(CudaDecodePromises, TableEntriesBeforeAWindowAreNotRead) {
  std::vector<AttentionCase> cases;
  for (const DType dtype : {DType::bf16, DType::fp8_e4m3}) {
    for (const std::int32_t window : {1, 16, 17, 40, 100}) {
      for (const std::int32_t q_len : {1, 3}) {
        AttentionCase c = case_of(dtype, 128, {33, 48, 49, 63, 64, 65, 300, 1000}, q_len);
        c.window_tokens = window;
        c.seed = static_cast<std::uint64_t>(window);
        cases.push_back(c);  // DecodeProblem makes these entries -1
      }
    }
  }
  for_each_problem(cases, [&](const AttentionProblem& problem) {
    const std::int32_t q_len = problem.shape().q_counts.empty() ? 1 : 3;
    expect_close(problem, DecodeProblem(problem, q_len, stream_).run(), "window");
  });
  finish();
}

TEST_F(CudaDecodePromises, ASkippedRowIsNotWritten) {
  const AttentionCase c = case_of(DType::bf16, 64, {100, 200, 300, 5000});
  const AttentionProblem problem(c);
  DecodeProblem device(problem, 1, stream_);
  const AttentionOutput all = device.run();
  const DeviceArray<std::int32_t> slots(std::vector<std::int32_t>{4, -1, 2, -1});
  device.schedule.row_slots = slots.data();
  const AttentionOutput some = device.run();
  for (const std::int64_t row : {0, 2}) {
    EXPECT_TRUE(equal(token_of(problem, some, row), token_of(problem, all, row))) << row;
  }
  for (const std::int64_t row : {1, 3}) {
    for (const std::byte b : token_of(problem, some, row)) ASSERT_EQ(b, std::byte{0xFF}) << row;
  }
  finish();
}

TEST_F(CudaDecodePromises, QueryTokensBeginWhereTheOffsetsSay) {
  const AttentionCase c = case_of(DType::bf16, 64, {100, 2, 300}, 2);
  const AttentionProblem problem(c);
  DecodeProblem device(problem, 2, stream_);
  const AttentionOutput plain = device.run();
  // Three other tokens come first. Between the rows lie rows of three tokens, which are skipped.
  const auto token = static_cast<std::ptrdiff_t>(problem.q().size() / 6);
  std::vector<std::byte> q(static_cast<std::size_t>(token * 15), std::byte{0xFF});
  const std::vector<std::int64_t> offsets{3, 5, 8, 10, 13, 15};
  for (std::int64_t row = 0; row < 3; ++row) {
    std::copy_n(problem.q().begin() + row * 2 * token, 2 * token,
                q.begin() + offsets[static_cast<std::size_t>(row * 2)] * token);
  }
  const DeviceArray<std::byte> queries(q);
  DeviceArray<std::byte> out(q.size());
  out.fill(0xEE);
  const DeviceArray<std::int64_t> device_offsets(offsets);
  device.params.q = queries.data();
  device.params.out = out.data();
  device.params.lse = nullptr;
  device.schedule.q_offsets = device_offsets.data();
  const DeviceArray<std::int32_t> lengths(std::vector<std::int32_t>{100, 100, 2, 2, 300});
  const DeviceArray<std::int32_t> slots(std::vector<std::int32_t>{3, 3, 2, 2, 1});
  device.schedule.seq_lens = lengths.data();
  device.schedule.row_slots = slots.data();
  device.schedule.num_rows = device.params.num_rows = 5;
  device.run();
  const std::vector<std::byte> found = out.download();
  for (std::int64_t i = 0; i < 15; ++i) {
    const std::span<const std::byte> there(found.data() + i * token,
                                           static_cast<std::size_t>(token));
    const std::int64_t row = (i - 3) / 5;
    const bool is_query = i >= 3 && (i - 3) % 5 < 2;
    if (!is_query) {
      for (const std::byte b : there) ASSERT_EQ(b, std::byte{0xEE}) << "token " << i;
      continue;
    }
    const std::int64_t query = row * 2 + (i - 3) % 5;
    EXPECT_TRUE(equal(there, token_of(problem, plain, query))) << "token " << i;
  }
  finish();
}

TEST_F(CudaDecodePromises, AValueThatIsNotANumberReachesOnlyThoseWhoSeeIt) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int32_t window : {0, 20}) {
      AttentionCase c = case_of(dtype, 128, {4, 16, 18, 100, 900}, 4);
      c.window_tokens = window;
      c.group = 2;
      const AttentionProblem problem(c);
      DecodeProblem device(problem, 4, stream_);
      const AttentionOutput clean = device.run();
      for (const float value :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        std::vector<std::byte> pool = problem.pool();
        for (std::int32_t row = 0; row < 5; ++row) {
          set_token(problem, pool, PlaneKind::value, row,
                    c.seq_lens[static_cast<std::size_t>(row)] - 2, value);
        }
        device.pool().upload(pool);
        const AttentionOutput spoilt = device.run();
        for (std::int64_t row = 0; row < 5; ++row) {
          for (std::int64_t query = 0; query < 2; ++query) {
            EXPECT_TRUE(equal(token_of(problem, spoilt, row * 4 + query),
                              token_of(problem, clean, row * 4 + query)))
                << "row " << row << ", query " << query << ", window " << window;
          }
          const std::span<const std::byte> seen = token_of(problem, spoilt, row * 4 + 3);
          EXPECT_FALSE(std::isfinite(load_element(seen.data(), c.out_dtype, 0)));
        }
      }
      if (window == 0) continue;
      // The first token that query 0 sees, and no later query.
      std::vector<std::byte> pool = problem.pool();
      set_token(problem, pool, PlaneKind::value, 4, 900 - 4 + 1 - window,
                std::numeric_limits<float>::quiet_NaN());
      device.pool().upload(pool);
      const AttentionOutput spoilt = device.run();
      EXPECT_FALSE(
          std::isfinite(load_element(token_of(problem, spoilt, 16).data(), c.out_dtype, 0)));
      for (std::int64_t query = 17; query < 20; ++query) {
        EXPECT_TRUE(equal(token_of(problem, spoilt, query), token_of(problem, clean, query)));
      }
    }
  }
  finish();
}

TEST_F(CudaDecodePromises, AKeyThatIsNotANumberShowsInOutputAndLogSumExp) {
  for (const std::int32_t length : {1, 40, 20000}) {
    AttentionCase c = case_of(DType::bf16, 128, {length});
    c.num_kv_heads = 1;
    const AttentionProblem problem(c);
    DecodeProblem device(problem, 1, stream_);
    std::vector<std::byte> pool = problem.pool();
    for (std::int32_t token = 0; token < length; ++token) {
      set_token(problem, pool, PlaneKind::key, 0, token, std::numeric_limits<float>::quiet_NaN());
    }
    device.pool().upload(pool);
    const AttentionOutput output = device.run();
    EXPECT_TRUE(std::isnan(output.lse[0])) << length;
    EXPECT_TRUE(std::isnan(load_element(output.out.data(), c.out_dtype, 0))) << length;
  }
  finish();
}

/// A fixture for steps with fixed parts: rows of all lengths with 1 to 5 query tokens each.
class CudaDecodeFixedParts : public CudaDecodePromises {
 protected:
  static AttentionCase ragged_case(DType dtype, std::int32_t head_dim, std::int32_t window) {
    AttentionCase c = case_of(dtype, head_dim, {});
    c.num_kv_heads = 1;
    c.group = 4;
    c.window_tokens = window;
    for (std::int32_t row = 0; row < 64; ++row) {
      c.seq_lens.push_back(row % 8 == 5 ? 1000 + row * 97 : 5 + row * 7);
      c.q_counts.push_back(1 + row % 5);
    }
    c.seq_lens[13] = 40000;  // more than 32 parts of 1,024 tokens
    return c;
  }
  /// Sets limits with fixed parts.
  static void fix(DecodeProblem& device, std::int32_t max_rows) {
    kernels::DecodeLimits limits = device.schedule.limits;
    limits.fixed_tokens = 200'000;
    limits.max_rows = max_rows;
    device.set_limits(limits);
    device.schedule.fixed_parts = true;
  }
  /// Whether a row has the same output and log-sum-exp to the bit.
  static bool same_row(const AttentionProblem& problem, std::size_t row, const AttentionOutput& a,
                       const AttentionOutput& b) {
    const std::int64_t heads = problem.shape().num_kv_heads * problem.shape().group;
    bool same = true;
    for (std::int64_t q = problem.q_offsets()[row]; q < problem.q_offsets()[row + 1]; ++q) {
      same = same && equal(token_of(problem, a, q), token_of(problem, b, q));
      for (std::int64_t head = 0; head < heads; ++head) {
        const auto at = static_cast<std::size_t>(q * heads + head);
        same = same && a.lse[at] == b.lse[at];
      }
    }
    return same;
  }
};

TEST_F(CudaDecodeFixedParts, ARowHasTheSameBitsAloneInABatchAndAtAnyPlace) {
  for (const DType dtype : {DType::bf16, DType::fp8_e4m3}) {
    for (const std::int32_t head_dim : {64, 96, 128, 256}) {
      const AttentionCase c = ragged_case(dtype, head_dim, head_dim == 96 ? 3000 : 0);
      const AttentionProblem problem(c);
      DecodeProblem device(problem, 5, stream_);
      fix(device, 64);
      const AttentionOutput all = device.run();
      expect_close(problem, all, "fixed parts");
      const kernels::DecodeScheduleParams batch = device.schedule;
      for (const std::int32_t max_rows : {1, 1000}) {
        fix(device, max_rows);
        device.schedule.num_rows = device.params.num_rows = 1;
        for (const std::size_t row : {0UL, 5UL, 13UL, 37UL, 63UL}) {
          device.schedule.seq_lens = batch.seq_lens + row;
          device.schedule.row_slots = batch.row_slots + row;
          device.schedule.q_offsets = batch.q_offsets + row;
          EXPECT_TRUE(same_row(problem, row, device.run(), all))
              << "row " << row << ", max_rows " << max_rows << "; " << to_string(c);
        }
      }
      // The last rows of the batch come first.
      fix(device, 64);
      device.schedule.num_rows = device.params.num_rows = 30;
      device.schedule.seq_lens = batch.seq_lens + 34;
      device.schedule.row_slots = batch.row_slots + 34;
      device.schedule.q_offsets = batch.q_offsets + 34;
      const AttentionOutput end = device.run();
      for (std::size_t row = 34; row < 64; ++row) {
        EXPECT_TRUE(same_row(problem, row, end, all)) << "row " << row << "; " << to_string(c);
      }
    }
  }
  finish();
}

// With fixed parts, rows that are skipped change nothing for the others.
TEST_F(CudaDecodeFixedParts, RowsOfOtherKernelsAreSkipped) {
  AttentionCase c = ragged_case(DType::bf16, 128, 0);
  c.q_counts[3] = 0;
  const AttentionProblem problem(c);
  DecodeProblem device(problem, 5, stream_);
  fix(device, 64);
  const AttentionOutput all = device.run();
  kernels::DecodeLimits limits = device.schedule.limits;
  limits.q_len = 3;
  limits.max_rows = 40;
  device.set_limits(limits);
  std::vector<std::int32_t> shared(64);
  shared[0] = 16;
  shared[13] = 1;
  shared[15] = -1;
  const DeviceArray<std::int32_t> device_shared(shared);
  device.schedule.shared_tokens = device_shared.data();
  const AttentionOutput some = device.run();
  for (std::size_t row = 0; row < 64; ++row) {
    if (c.q_counts[row] <= 3 && shared[row] <= 0) {
      EXPECT_TRUE(same_row(problem, row, some, all)) << row;
      continue;
    }
    for (std::int64_t q = problem.q_offsets()[row]; q < problem.q_offsets()[row + 1]; ++q) {
      for (const std::byte b : token_of(problem, some, q)) ASSERT_EQ(b, std::byte{0xFF}) << row;
    }
  }
  finish();
}

// More rows than the limits say: those that fit are right, the others are not touched, and the
// workspace serves the next step.
TEST_F(CudaDecodeFixedParts, RowsThatDoNotFitTheWorkspaceAreLeftOut) {
  const AttentionCase c = ragged_case(DType::bf16, 128, 0);
  const AttentionProblem problem(c);
  DecodeProblem device(problem, 5, stream_);
  fix(device, 64);
  const AttentionOutput all = device.run();
  kernels::DecodeLimits limits = device.schedule.limits;
  limits.max_rows = 1;
  limits.num_sms = 1;
  limits.fixed_tokens = 25'000;
  device.set_limits(limits);
  for (int step = 0; step < 2; ++step) {
    const AttentionOutput some = device.run();
    int written = 0;
    for (std::size_t row = 0; row < 64; ++row) {
      const std::int64_t first = problem.q_offsets()[row];
      const std::span<const std::byte> token = token_of(problem, some, first);
      const bool is_untouched =
          std::ranges::all_of(token, [](std::byte b) { return b == std::byte{0xFF}; });
      written += is_untouched ? 0 : 1;
    }
    EXPECT_GT(written, 0);
    EXPECT_LT(written, 64);
  }
  device.schedule.num_rows = device.params.num_rows = 1;
  EXPECT_TRUE(same_row(problem, 0, device.run(), all));
  finish();
}

// 2^31 - 1 tokens, all in one block: keys of 0 and values of 1.
TEST_F(CudaDecodePromises, TheLongestLengthThatAnIntHolds) {
  constexpr std::int32_t kLength = std::numeric_limits<std::int32_t>::max();
  AttentionCase c = case_of(DType::bf16, 64, {16});
  c.num_kv_heads = 1;
  c.group = 1;
  const AttentionProblem problem(c);
  DecodeProblem device(problem, 1, stream_);
  std::vector<std::byte> pool = problem.pool();
  for (std::int32_t token = 0; token < 16; ++token) {
    set_token(problem, pool, PlaneKind::key, 0, token, 0.0F);
    set_token(problem, pool, PlaneKind::value, 0, token, 1.0F);
  }
  device.pool().upload(pool);
  const BlockId block = problem.args(nullptr, nullptr).batch.tables.block(0, 0);
  const DeviceArray<BlockId> table(std::vector<BlockId>(std::size_t{1} << 27, block));
  const DeviceArray<std::int32_t> lengths(std::vector<std::int32_t>{kLength});
  device.params.block_tables = table.data();
  device.schedule.row_slots = nullptr;
  device.schedule.seq_lens = lengths.data();
  const AttentionOutput output = device.run();
  for (std::int32_t d = 0; d < 64; ++d) {
    EXPECT_EQ(load_element(output.out.data(), c.out_dtype, d), 1.0F) << d;
  }
  EXPECT_NEAR(output.lse[0], std::log(static_cast<double>(kLength)), 1e-4);
  finish();
}

}  // namespace
}  // namespace kvarena::test
