// Attention with many query columns on the GPU against the reference in double precision over K and
// V as stored: ragged lengths and query counts, permuted blocks, NaN in every slot that no token
// owns, -1 in every table entry that no query token needs. Every case is run again over a spoiled
// workspace and other garbage in the pool, for the same bits.

#include "kernel/campaign.hpp"
#include "kernel/columns_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvarena::test {
namespace {

constexpr std::int32_t kHeadDims[] = {64, 80, 96, 128, 192, 256};
constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::fp8_e4m3};
constexpr std::int32_t kGroups[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 32};
constexpr std::int32_t kBlockSizes[] = {16, 32, 48, 64, 128};

AttentionCase columns_case(DType dtype, std::int32_t head_dim, std::int32_t group,
                           std::int32_t block_size, std::int32_t q_len) {
  AttentionCase c;
  set_types(c, dtype, static_cast<std::uint64_t>(q_len));
  c.head_dim_k = c.head_dim_v = head_dim;
  c.group = group;
  c.block_size = block_size;
  c.tile_order = TileOrder::chunked;
  c.seq_lens = {0, q_len, 15, 16, 17, 47, 48, 49, 64, 65, 300};
  for (std::int32_t& length : c.seq_lens) {
    if (length > 0) length = std::max(length, q_len);
  }
  c.q_counts.assign(c.seq_lens.size(), q_len);
  return c;
}

/// The query tokens of row `row` of an output.
template <class T>
std::vector<T> row_of(const AttentionProblem& problem, const std::vector<T>& values,
                      std::size_t row) {
  const auto& offsets = problem.q_offsets();
  const auto per_token = static_cast<std::ptrdiff_t>(values.size()) / offsets.back();
  return {values.begin() + offsets[row] * per_token, values.begin() + offsets[row + 1] * per_token};
}

class CudaColumns : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    int major = 0;
    EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "the kernel is for compute capability 9.0";
  }
  void expect_matches(const AttentionProblem& problem) {
    const AttentionCase& c = problem.shape();
    ColumnsOptions options;
    if (c.seed % 7 == 3) options.num_sms = 5;
    if (c.seed % 5 == 2) options.first_q = 3;
    options.fixed_parts = c.seed % 4 == 1;
    expect_matches(problem, options);
  }
  void expect_matches(const AttentionProblem& problem, const ColumnsOptions& options) {
    const AttentionCase& c = problem.shape();
    ColumnsProblem device(problem, stream_, options);
    const AttentionOutput first = device.run();
    expect_close(problem, first, "columns");
    device.expect_counters_at_rest();
    EXPECT_TRUE(same_bytes(device.pool().download(), problem.pool())) << "the pool is only read";
    device.spoil_workspace();
    device.pool().upload(problem.pool_with(Poison::infinity));
    const AttentionOutput again = device.run(true);
    EXPECT_TRUE(same_bytes(first.out, again.out)) << "same tokens, same bits; " << to_string(c);
    EXPECT_EQ(first.lse, again.lse) << "same tokens, same bits; " << to_string(c);
    device.expect_counters_at_rest();
  }
  void expect_all_match(const std::vector<AttentionCase>& cases) {
    for_each_problem(cases, [&](const AttentionProblem& problem) { expect_matches(problem); });
  }
};

TEST_F(CudaColumns, EveryTypeDimGroupAndBlockSizeOverRaggedLengths) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 0;
  for (const DType dtype : {DType::bf16, DType::f16, DType::fp8_e4m3}) {
    for (const std::int32_t head_dim : kHeadDims) {
      if (!has_instance(dtype, head_dim)) continue;
      for (const std::int32_t group : kGroups) {
        for (const std::int32_t block_size : kBlockSizes) {
          const std::int32_t most = std::min<std::int32_t>(17, 129 / group);
          AttentionCase c = columns_case(dtype, head_dim, group, block_size,
                                         1 + static_cast<std::int32_t>(++seed % 97) % most);
          c.num_kv_heads = group > 8 ? 1 : 2;
          c.block_major = seed % 2 == 0;
          c.seed = seed;
          if (is_picked(seed)) cases.push_back(c);
        }
      }
    }
  }
  expect_all_match(cases);
}

TEST_F(CudaColumns, WindowSoftCapSinksAndQueryTokens) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 1000;
  for (const std::int32_t window : {0, 1, 16, 100}) {
    for (const float cap : {0.0F, 20.0F}) {
      for (std::int32_t q_len = 1; q_len <= 16; ++q_len) {
        const std::int32_t head_dim = kHeadDims[seed % std::size(kHeadDims)];
        const DType dtype = kTypes[seed / 2 % std::size(kTypes)];
        AttentionCase c = columns_case(has_instance(dtype, head_dim) ? dtype : DType::bf16,
                                       head_dim, 6, 16, q_len);
        c.seed = ++seed;
        c.window_tokens = window;
        c.soft_cap = cap;
        c.has_sinks = seed % 2 == 0;
        c.seq_lens.push_back(700);
        c.q_counts.push_back(q_len);
        if (is_picked(seed)) cases.push_back(c);
      }
    }
  }
  expect_all_match(cases);
}

TEST_F(CudaColumns, RowsHaveTheirOwnNumberOfQueryTokens) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 2000;
  for (const std::int32_t head_dim : kHeadDims) {
    for (const std::int32_t group : {1, 4, 7}) {
      const bool is_fp8 = seed % 2 == 1 && has_instance(DType::fp8_e4m3, head_dim);
      AttentionCase c =
          columns_case(is_fp8 ? DType::fp8_e4m3 : DType::bf16, head_dim, group, 32, 16);
      c.seed = ++seed;
      c.seq_lens = {40, 0, 300, 16, 0, 17, 129, 5, 64};
      c.q_counts = {3, 4, 16, 16, 0, 0, 1, 5, 9};
      c.window_tokens = seed % 3 == 0 ? 30 : 0;
      if (is_picked(seed)) cases.push_back(c);
    }
  }
  expect_all_match(cases);
}

TEST_F(CudaColumns, LongAndManyRowsAreSplitAndCombined) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 3000;
  for (const DType dtype : {DType::bf16, DType::fp8_e4m3}) {
    for (const std::int32_t head_dim : {64, 128, 256}) {
      for (const std::int32_t q_len : {4, 16}) {
        AttentionCase c = columns_case(dtype, head_dim, 8, 16, q_len);
        c.seed = ++seed;
        c.num_kv_heads = 1;
        c.seq_lens = {is_watched() ? 2000 : 9000};
        c.q_counts = {q_len};
        cases.push_back(c);
        c.seed = ++seed;
        c.group = 2;
        c.seq_lens.assign(is_watched() ? 60 : 300, 60);
        c.seq_lens[33] = is_watched() ? 1000 : 6000;
        c.q_counts.assign(c.seq_lens.size(), q_len);
        cases.push_back(c);
      }
    }
  }
  expect_all_match(cases);
}

TEST_F(CudaColumns, DraftTrees) {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 4000;
  for (const std::int32_t head_dim : kHeadDims) {
    for (const std::int32_t q_len : {2, 9, 16, 33, 63, 64}) {
      const DType dtype = kTypes[++seed % std::size(kTypes)];
      AttentionCase c = columns_case(has_instance(dtype, head_dim) ? dtype : DType::f16, head_dim,
                                     q_len > 16 ? 1 : 4, 16, q_len);
      c.seed = seed;
      c.has_tree = true;
      c.has_sinks = seed % 3 == 0;
      c.window_tokens = seed % 4 == 0 ? 5 : seed % 4 == 1 ? 90 : 0;
      c.seq_lens.push_back(2500);
      c.q_counts.push_back(q_len);
      if (is_picked(seed)) cases.push_back(c);
    }
  }
  expect_all_match(cases);
}

// With fixed parts, because other cuts of a row may change its last bits.
TEST_F(CudaColumns, SkippedRowsAreNotWritten) {
  AttentionCase c = columns_case(DType::bf16, 128, 4, 16, 5);
  const AttentionProblem problem(c);
  ColumnsOptions options;
  options.fixed_parts = true;
  ColumnsProblem whole(problem, stream_, options);
  const AttentionOutput all = whole.run();
  for (std::int32_t skipped : {0, 4, 10}) {
    options.skipped_row = skipped;
    ColumnsProblem device(problem, stream_, options);
    const AttentionOutput output = device.run();
    for (std::size_t row = 0; row < c.seq_lens.size(); ++row) {
      const std::vector<std::byte> have = row_of(problem, output.out, row);
      const std::vector<std::byte> none(have.size(), std::byte{0xFF});
      const bool is_skipped = static_cast<std::int32_t>(row) == skipped;
      EXPECT_TRUE(same_bytes(have, is_skipped ? none : row_of(problem, all.out, row)))
          << "row " << row << " without row " << skipped;
    }
  }
}

// Rows of other classes are in the batch, in any order. The rows of the class have the bits that
// they have without the others, and nothing else is written.
TEST_F(CudaColumns, RowsOfOtherClassesAreSkipped) {
  for (const auto& [dtype, head_dim] : {std::pair{DType::bf16, 80},
                                        {DType::bf16, 128},
                                        {DType::fp8_e4m3, 128},
                                        {DType::fp8_e4m3, 192}}) {
    AttentionCase c = columns_case(dtype, head_dim, 4, 16, 16);
    c.seq_lens = {300, 17, 5000, 64, 0, 16, 900, 129, 40, 33, 2100, 70, 16};
    c.q_counts = {5, 1, 8, 16, 0, 3, 9, 4, 2, 8, 1, 3, 16};
    const AttentionProblem problem(c);
    ColumnsOptions options;
    options.fixed_parts = true;
    ColumnsProblem whole(problem, stream_, options);
    const AttentionOutput all = whole.run();
    expect_close(problem, all, "all classes");
    options.min_q_len = 3;
    options.q_len = 8;
    for (const std::int32_t max_rows : {0, 1, 3, 1000}) {
      options.max_rows = max_rows;
      ColumnsProblem device(problem, stream_, options);
      const AttentionOutput output = device.run();
      std::int32_t listed = 0;
      for (std::size_t row = 0; row < c.seq_lens.size(); ++row) {
        const bool is_of_class = c.q_counts[row] >= 3 && c.q_counts[row] <= 8;
        const bool is_in = is_of_class && (max_rows == 0 || listed++ < max_rows);
        const std::vector<std::byte> have = row_of(problem, output.out, row);
        const std::vector<std::byte> none(have.size(), std::byte{0xFF});
        EXPECT_TRUE(same_bytes(have, is_in ? row_of(problem, all.out, row) : none))
            << "row " << row << " of at most " << max_rows;
      }
    }
  }
}

// Without offsets, all rows have the query tokens of the limits.
TEST_F(CudaColumns, EqualRowsNeedNoOffsets) {
  AttentionCase c = columns_case(DType::f16, 128, 4, 16, 6);
  const AttentionProblem problem(c);
  ColumnsOptions options;
  options.min_q_len = 6;
  expect_matches(problem, options);
}

/// Runs the only row of `problem` as the last one of a batch of `num_rows`. The others have its
/// tables and query tokens, and other lengths. With a window they have its length too, because its
/// table has only the entries that it needs.
std::vector<std::byte> run_as_last(const AttentionProblem& problem, ColumnsProblem& device,
                                   std::int32_t num_rows, cudaStream_t stream) {
  const auto rows = static_cast<std::size_t>(num_rows);
  const std::int32_t longest = problem.shape().seq_lens[0];
  std::vector<std::int32_t> lengths;
  std::vector<std::byte> q;
  for (std::int32_t row = 0; row < num_rows; ++row) {
    const bool is_other = row + 1 < num_rows && problem.shape().window_tokens == 0;
    lengths.push_back(is_other ? longest - 100 * (row % 20) - 7 : longest);
    q.insert(q.end(), problem.q().begin(), problem.q().end());
  }
  const DeviceArray<std::int32_t> device_lengths(lengths);
  const DeviceArray<std::int32_t> slots(std::vector<std::int32_t>(rows, 1));
  const DeviceArray<std::byte> queries(q);
  const DeviceArray<std::byte> out(q.size());
  kernels::ColumnsLimits limits = device.params.limits;
  limits.max_rows = num_rows;
  limits.fixed_tokens *= num_rows;
  const std::int64_t bytes = kernels::columns_workspace_bytes(limits);
  DeviceArray<std::byte> workspace(static_cast<std::size_t>(bytes));
  workspace.fill(0);
  kernels::ColumnsScheduleParams schedule = device.schedule;
  kernels::ColumnsParams params = device.params;
  schedule.limits = params.limits = limits;
  schedule.num_rows = params.num_rows = num_rows;
  schedule.workspace = params.workspace = workspace.data();
  schedule.workspace_bytes = params.workspace_bytes = bytes;
  schedule.seq_lens = device_lengths.data();
  schedule.row_slots = slots.data();
  params.q = queries.data();
  params.out = out.data();
  params.lse = nullptr;
  EXPECT_OK(kernels::launch_columns_schedule(schedule, stream));
  EXPECT_OK(kernels::launch_columns(params, false, stream));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  const std::vector<std::byte> all = out.download();
  return {all.end() - static_cast<std::ptrdiff_t>(all.size() / rows), all.end()};
}

TEST_F(CudaColumns, FixedPartsGiveARowTheSameBitsInEveryBatch) {
  ColumnsOptions options;
  options.fixed_parts = true;
  for (const std::int32_t window : {0, 3000}) {
    for (const std::int32_t q_len : {8, 20, 9, 21}) {
      const DType dtype = q_len % 4 == 0 ? DType::bf16 : DType::fp8_e4m3;
      AttentionCase c = columns_case(dtype, 128, 4, 16, q_len);
      c.window_tokens = window;
      c.num_kv_heads = 1;
      c.seq_lens = {5000};
      c.q_counts = {q_len};
      const AttentionProblem problem(c);
      ColumnsProblem device(problem, stream_, options);
      const AttentionOutput alone = device.run();
      expect_close(problem, alone, "alone");
      for (const std::int32_t num_rows : {1, 2, 8, 41}) {
        EXPECT_TRUE(same_bytes(run_as_last(problem, device, num_rows, stream_), alone.out))
            << num_rows << " rows; " << to_string(c);
      }
    }
  }
}

AttentionCase random_case(std::uint64_t seed) {
  Dice dice(seed);
  const std::int32_t group = dice.one_of({1, 2, 3, 4, 5, 6, 7, 8, 12, 16});
  const std::int32_t q_len = dice.between(1, std::min(dice.once_in(4) ? 40 : 16, 160 / group));
  const DType dtype = dice.one_of({DType::bf16, DType::f16, DType::fp8_e4m3});
  const std::int32_t head_dim = dice.one_of({64, 80, 96, 128, 192, 256});
  AttentionCase c = columns_case(has_instance(dtype, head_dim) ? dtype : DType::bf16, head_dim,
                                 group, 16 * dice.one_of({1, 2, 3, 4, 5, 8}), q_len);
  c.seed = seed;
  c.num_kv_heads = dice.between(1, 8);
  c.window_tokens = dice.once_in(3) ? dice.between(1, 500) : 0;
  c.has_tree = dice.once_in(4);
  c.soft_cap = !c.has_tree && dice.once_in(4) ? 5.0F : 0.0F;
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

TEST_F(CudaColumns, RandomShapes) {
  std::vector<AttentionCase> cases;
  for (int i = 0; i < rounds(500); ++i) {
    cases.push_back(random_case(first_seed() * 100000 + static_cast<std::uint64_t>(i)));
  }
  expect_all_match(cases);
}

}  // namespace
}  // namespace kvarena::test
