// Rows whose tables begin with the same blocks on the GPU: the groups that are found, and attention
// over them against the reference in double precision. As in cuda_columns_test.cpp, every case is
// run again over a spoiled workspace and other garbage in the pool, for the same bits.

#include "kernel/campaign.hpp"
#include "kernel/columns_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace kvarena::test {
namespace {

using Lengths = std::vector<std::int32_t>;

AttentionCase shared_case(std::uint64_t seed, const Lengths& lengths, const Lengths& counts) {
  AttentionCase c;
  c.seed = seed;
  c.head_dim_k = c.head_dim_v = 128;
  c.tile_order = TileOrder::chunked;
  c.seq_lens = lengths;
  c.q_counts = counts;
  return c;
}

/// Rows `rows` begin with `blocks` blocks of the first of them.
void share(AttentionCase& c, const Lengths& rows, std::int32_t blocks, std::int32_t first = 0) {
  for (std::size_t i = 1; i < rows.size(); ++i) {
    c.shared_blocks.push_back({rows[i], rows[0], first, blocks});
  }
}

template <class T>
std::vector<T> array_at(const std::vector<std::byte>& memory, std::int64_t offset,
                        std::int32_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(values.data(), memory.data() + offset, values.size() * sizeof(T));
  return values;
}

class CudaSharedPrefixes : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    int major = 0;
    EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "the kernel is for compute capability 9.0";
  }
  static ColumnsOptions options_of(const AttentionProblem& problem) {
    ColumnsOptions options;
    options.shared_rows = static_cast<std::int32_t>(problem.shape().seq_lens.size());
    if (problem.shape().seed % 3 == 1) options.num_sms = 5;
    if (problem.shape().seed % 5 == 2) options.first_q = 3;
    return options;
  }
  /// Returns the tokens of each row's prefix.
  Lengths expect_matches(const AttentionProblem& problem, const ColumnsOptions& options) {
    ColumnsProblem device(problem, stream_, options);
    const AttentionOutput first = device.run();
    expect_close(problem, first, "shared prefixes");
    device.expect_counters_at_rest();
    expect_plan_holds(problem, device, options);
    const Lengths shared = device.shared_tokens();
    device.spoil_workspace();
    device.pool().upload(problem.pool_with(Poison::infinity));
    const AttentionOutput again = device.run(true);
    EXPECT_EQ(shared, device.shared_tokens());
    EXPECT_TRUE(same_bytes(first.out, again.out)) << to_string(problem.shape());
    EXPECT_EQ(first.lse, again.lse) << to_string(problem.shape());
    device.expect_counters_at_rest();
    return shared;
  }
  Lengths expect_matches(const AttentionCase& c) {
    const AttentionProblem problem(c);
    return expect_matches(problem, options_of(problem));
  }
  /// Members are rows once each, tiles fit a thread block, and all of a tile begin with its blocks.
  static void expect_plan_holds(const AttentionProblem& problem, const ColumnsProblem& device,
                                const ColumnsOptions& options) {
    const AttentionCase& c = problem.shape();
    const std::vector<std::byte> memory = device.prefixes();
    const kernels::PrefixPlan plan = kernels::prefix_plan(device.params.limits);
    const auto header = array_at<kernels::PrefixHeader>(memory, plan.header, 1)[0];
    const auto tiles = array_at<kernels::PrefixTile>(memory, plan.tiles, header.num_tiles);
    const auto members = array_at<kernels::PrefixMember>(memory, plan.members, header.num_members);
    const Lengths shared = device.shared_tokens();
    Lengths times(shared.size(), 0);
    std::int32_t member = 0;
    std::int32_t token = 0;
    for (const kernels::PrefixTile& tile : tiles) {
      EXPECT_EQ(tile.first_member, member);
      EXPECT_EQ(tile.first_token, token);
      EXPECT_LE((tile.end_token - tile.first_token) * c.group, 128);
      EXPECT_GE(tile.shared_tokens, 256);
      EXPECT_EQ(tile.shared_tokens % c.block_size, 0);
      for (; member < tile.end_member; ++member) {
        const kernels::PrefixMember& m = members[static_cast<std::size_t>(member)];
        const auto row = static_cast<std::size_t>(m.row);
        const std::int64_t begin = problem.q_offsets()[row] + options.first_q;
        const auto count =
            static_cast<std::int32_t>(problem.q_offsets()[row + 1] - problem.q_offsets()[row]);
        EXPECT_EQ(m.first_token, token);
        const auto tokens = array_at<std::int32_t>(memory, plan.tokens + token * 4, count);
        for (std::int32_t i = 0; i < count; ++i) {
          EXPECT_EQ(tokens[static_cast<std::size_t>(i)], begin + i);
        }
        token += count;
        ++times[row];
        EXPECT_EQ(shared[row], tile.shared_tokens);
        EXPECT_LE(shared[row], c.seq_lens[row] - count);
        const BlockTableView tables = problem.args(nullptr, nullptr).batch.tables;
        const auto rows = static_cast<std::int32_t>(c.seq_lens.size());
        for (std::int32_t j = 0; j < tile.shared_tokens / c.block_size; ++j) {
          EXPECT_EQ(tables.block(m.row, j), tables.block(rows - tile.table_row, j));
        }
      }
      EXPECT_EQ(tile.end_token, token);
    }
    EXPECT_EQ(header.num_members, member);
    for (std::size_t row = 0; row < shared.size(); ++row) {
      EXPECT_EQ(times[row], shared[row] > 0 ? 1 : 0) << "row " << row;
    }
  }
};

TEST_F(CudaSharedPrefixes, GroupsOfRowsThatAreNoNeighbours) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    AttentionCase c =
        shared_case(seed, {900, 1300, 700, 2000, 40, 600, 1100, 650, 530, 1400, 0, 800},
                    {1, 3, 2, 1, 5, 1, 4, 2, 1, 8, 1, 1});
    share(c, {0, 3, 5, 8}, 33);  // 528 tokens: no multiple of a slab
    share(c, {1, 6, 9}, 65);
    share(c, {2, 7}, 40);
    EXPECT_EQ(expect_matches(c),
              (Lengths{528, 1040, 640, 528, 0, 528, 1040, 640, 528, 1040, 0, 0}));
  }
}

// One level is shared: the one that saves the most.
TEST_F(CudaSharedPrefixes, GroupsWithinAGroup) {
  for (const bool is_outer : {false, true}) {
    AttentionCase c = shared_case(7, Lengths(12, 1200), Lengths(12, 2));
    for (std::int32_t row = 0; row < 12; ++row) c.seq_lens[static_cast<std::size_t>(row)] += row;
    Lengths all(12);
    std::iota(all.begin(), all.end(), 0);
    for (std::int32_t g = 0; g < 4; ++g) share(c, {g, g + 4, g + 8}, is_outer ? 65 : 60);
    share(c, all, is_outer ? 60 : 20);
    EXPECT_EQ(expect_matches(c), Lengths(12, 960));
  }
}

// Three levels: two rows share much within each pair of groups, and the pairs share little.
TEST_F(CudaSharedPrefixes, DeepGroupsBesideAShallowRow) {
  AttentionCase c = shared_case(8, {2100, 2200, 2300, 2400, 500, 2500}, {1, 1, 1, 1, 1, 1});
  share(c, {0, 2}, 120);
  share(c, {1, 3}, 130);
  share(c, {0, 1, 2, 3}, 20);
  share(c, {0, 4, 5}, 17);
  EXPECT_EQ(expect_matches(c), (Lengths{1920, 2080, 1920, 2080, 0, 0}));
}

TEST_F(CudaSharedPrefixes, TablesThatDifferLaterAndMeetAgain) {
  AttentionCase c = shared_case(9, {1000, 1000, 1000, 1000, 1000}, {1, 1, 1, 1, 1});
  share(c, {0, 1, 2}, 20);
  share(c, {0, 1, 2}, 60, 21);  // entry 20 differs
  share(c, {3, 4}, 1);          // too short
  EXPECT_EQ(expect_matches(c), (Lengths{320, 320, 320, 0, 0}));
  c.shared_blocks.clear();
  share(c, {0, 1, 2, 3, 4}, 15);  // 240 tokens are too few
  EXPECT_EQ(expect_matches(c), Lengths(5, 0));
}

TEST_F(CudaSharedPrefixes, OwnPartsOfOnlyTheQueryTokens) {
  for (const std::int32_t q_len : {1, 8, 16}) {
    AttentionCase c = shared_case(10, Lengths(6, 512 + q_len), Lengths(6, q_len));
    share(c, {0, 1, 2, 3, 4, 5}, (512 + q_len + 15) / 16);  // the blocks of query tokens too
    const AttentionProblem problem(c);
    ColumnsOptions options = options_of(problem);
    options.max_rows = options.shared_rows = 32;  // room for all query tokens
    EXPECT_EQ(expect_matches(problem, options), Lengths(6, 512));
  }
}

TEST_F(CudaSharedPrefixes, EveryTypeDimAndGroup) {
  std::uint64_t seed = 100;
  for (const DType dtype : {DType::bf16, DType::f16, DType::fp8_e4m3}) {
    for (const std::int32_t head_dim : {64, 80, 96, 128, 192, 256}) {
      if (!has_instance(dtype, head_dim)) continue;
      for (const std::int32_t group : {1, 4, 6, 8, 16, 48}) {
        AttentionCase c = shared_case(++seed, {700, 560, 900, 400, 610, 1000, 333, 800},
                                      {1, 2, 1, 2, 1, 2, 1, 2});
        set_types(c, dtype, seed);
        c.head_dim_k = c.head_dim_v = head_dim;
        c.group = group;
        c.num_kv_heads = group > 8 ? 1 : 2;
        c.block_size = seed % 2 == 0 ? 16 : 48;
        c.block_major = seed % 3 == 0;
        c.has_sinks = seed % 4 == 0;
        c.soft_cap = seed % 5 == 0 ? 20.0F : 0.0F;
        c.has_tree = seed % 5 == 1;
        share(c, {0, 1, 2, 4, 5, 7}, 528 / c.block_size);
        if (is_picked(seed)) {
          EXPECT_EQ(expect_matches(c)[5], 528) << to_string(c);
        }
      }
    }
  }
}

// Many tiles of a group, cut over many thread blocks and over few.
TEST_F(CudaSharedPrefixes, ALargeGroup) {
  for (const std::uint64_t seed : {11U, 12U, 13U}) {
    const int count = is_watched() ? 20 : 150;
    AttentionCase c = shared_case(seed, Lengths(static_cast<std::size_t>(count), 700),
                                  Lengths(static_cast<std::size_t>(count), 2));
    c.group = 8;
    c.head_dim_k = c.head_dim_v = 64;
    Lengths rows;
    for (std::int32_t row = 0; row < count; ++row) {
      c.seq_lens[static_cast<std::size_t>(row)] += row % 37;
      c.q_counts[static_cast<std::size_t>(row)] = 1 + row % 3;
      if (row % 7 != 3) rows.push_back(row);
    }
    share(c, rows, 40);
    const Lengths shared = expect_matches(c);
    for (std::int32_t row = 0; row < count; ++row) {
      EXPECT_EQ(shared[static_cast<std::size_t>(row)], row % 7 != 3 ? 640 : 0) << row;
    }
  }
}

// Rows beyond the limits are served by themselves.
TEST_F(CudaSharedPrefixes, WhatDoesNotFitIsNotShared) {
  AttentionCase c = shared_case(14, Lengths(16, 800), Lengths(16, 8));
  for (std::int32_t g = 0; g < 4; ++g) share(c, {g, g + 4, g + 8, g + 12}, 40);
  const AttentionProblem problem(c);
  ColumnsOptions options = options_of(problem);
  Lengths shared = expect_matches(problem, options);  // room for 64 of the 128 query tokens
  EXPECT_EQ(std::count(shared.begin(), shared.end(), 640), 8);
  EXPECT_EQ(std::count(shared.begin(), shared.end(), 0), 8);
  options.shared_rows = 5;
  shared = expect_matches(problem, options);
  EXPECT_EQ(shared[0], 640);
  EXPECT_EQ(shared[4], 640);
  EXPECT_EQ(std::count(shared.begin(), shared.end(), 0), 14);
}

// Sharing costs each member a part. Two rows do not save it by 2,880 tokens, and eight rows do.
TEST_F(CudaSharedPrefixes, SharedWhereItSavesTime) {
  for (const std::int32_t members : {2, 8}) {
    AttentionCase c = shared_case(18, Lengths(8, 3000), Lengths(8, 1));
    c.num_kv_heads = c.group = 1;
    c.head_dim_k = c.head_dim_v = 64;
    Lengths rows(static_cast<std::size_t>(members));
    std::iota(rows.begin(), rows.end(), 0);
    share(c, rows, 180);
    const AttentionProblem problem(c);
    ColumnsOptions options = options_of(problem);
    options.shares_short = false;
    EXPECT_EQ(expect_matches(problem, options), Lengths(8, members == 8 ? 2880 : 0));
  }
}

// Where own tokens of a member take longer, a prefix must be a larger part of them.
TEST_F(CudaSharedPrefixes, OwnTokensMayCostMore) {
  for (const DType dtype : {DType::bf16, DType::fp8_e4m3}) {
    for (const std::int32_t blocks : {128, 180}) {
      for (const std::int32_t own_sixteenths : {0, 7}) {
        AttentionCase c = shared_case(19, Lengths(8, 3000), Lengths(8, 1));
        set_types(c, dtype, 19);
        c.num_kv_heads = c.group = 1;
        c.head_dim_k = c.head_dim_v = 64;
        share(c, {0, 1, 2, 3, 4, 5, 6, 7}, blocks);
        const AttentionProblem problem(c);
        ColumnsOptions options = options_of(problem);
        options.shares_short = false;
        options.own_sixteenths = own_sixteenths;
        const bool is_shared = blocks == 180 || own_sixteenths == 0;
        EXPECT_EQ(expect_matches(problem, options), Lengths(8, is_shared ? blocks * 16 : 0));
      }
    }
  }
}

TEST_F(CudaSharedPrefixes, AWindowSharesNothing) {
  AttentionCase c = shared_case(15, Lengths(6, 900), Lengths(6, 4));
  c.window_tokens = 300;
  share(c, {0, 1, 2, 3, 4, 5}, 40);
  EXPECT_EQ(expect_matches(c), Lengths(6, 0));
}

// With the same limits, a search that finds nothing changes no bit.
TEST_F(CudaSharedPrefixes, NothingSharedGivesTheSameBits) {
  AttentionCase c = shared_case(16, {900, 17, 3000, 400, 0, 700}, {4, 1, 7, 2, 3, 8});
  const AttentionProblem problem(c);
  ColumnsProblem device(problem, stream_, options_of(problem));
  const AttentionOutput searched = device.run();
  EXPECT_EQ(device.shared_tokens(), Lengths(6, 0));
  device.find.prefixes = nullptr;
  device.schedule.prefixes = device.params.prefixes = nullptr;
  device.schedule.shared_tokens = nullptr;
  const AttentionOutput plain = device.run();
  EXPECT_TRUE(same_bytes(searched.out, plain.out));
  EXPECT_EQ(searched.lse, plain.lse);
}

// Rows with few query tokens are decode's, but for members.
TEST_F(CudaSharedPrefixes, MembersAreServedWhateverTheirQueryTokens) {
  AttentionCase c = shared_case(17, {900, 700, 800, 650, 500, 900}, {1, 1, 4, 1, 4, 1});
  share(c, {0, 2, 3}, 40);
  const AttentionProblem problem(c);
  ColumnsOptions options = options_of(problem);
  ColumnsProblem all(problem, stream_, options);
  const AttentionOutput want = all.run();
  expect_close(problem, want, "all");
  options.min_q_len = 3;
  ColumnsProblem device(problem, stream_, options);
  AttentionOutput output = device.run();
  EXPECT_EQ(device.shared_tokens(), (Lengths{640, 0, 640, 640, 0, 0}));
  const std::int64_t bytes = device.bytes_of_token();
  for (const std::size_t row : {std::size_t{1}, std::size_t{5}}) {
    const auto begin = static_cast<std::ptrdiff_t>(problem.q_offsets()[row] * bytes);
    EXPECT_EQ(
        std::count(output.out.begin() + begin, output.out.begin() + begin + bytes, std::byte{0xFF}),
        bytes);
    std::copy_n(want.out.begin() + begin, bytes, output.out.begin() + begin);
    const std::int64_t heads = device.params.limits.num_q_heads;
    const auto first = static_cast<std::ptrdiff_t>(problem.q_offsets()[row] * heads);
    std::copy_n(want.lse.begin() + first, heads, output.lse.begin() + first);
  }
  expect_close(problem, output, "members and the class");
}

AttentionCase random_case(std::uint64_t seed) {
  Dice dice(seed);
  const std::int32_t rows = dice.between(2, dice.once_in(6) ? 60 : 16);
  AttentionCase c = shared_case(seed, {}, {});
  c.head_dim_k = c.head_dim_v = dice.one_of({64, 80, 96, 128, 192, 256});
  const DType dtype = dice.one_of({DType::bf16, DType::f16, DType::fp8_e4m3});
  set_types(c, has_instance(dtype, c.head_dim_k) ? dtype : DType::f16, seed);
  c.group = dice.one_of({1, 2, 3, 4, 6, 8, 16});
  c.num_kv_heads = dice.between(1, 3);
  c.block_size = 16 * dice.one_of({1, 2, 3, 8});
  c.has_tree = dice.once_in(4);
  c.soft_cap = !c.has_tree && dice.once_in(4) ? 5.0F : 0.0F;
  c.has_sinks = dice.once_in(3);
  c.block_major = dice.once_in(2);
  const std::int32_t most = dice.between(1, std::min(16, 128 / c.group));
  for (std::int32_t row = 0; row < rows; ++row) {
    c.q_counts.push_back(dice.between(1, most));
    c.seq_lens.push_back(dice.between(most, dice.once_in(8) ? 3000 : 900));
    if (row == 0 || dice.once_in(4)) continue;
    const std::int32_t from = dice.between(0, row - 1);
    const auto blocks = [&](std::int32_t r) {
      return (c.seq_lens[static_cast<std::size_t>(r)] + c.block_size - 1) / c.block_size;
    };
    c.shared_blocks.push_back({row, from, 0, dice.between(0, std::min(blocks(row), blocks(from)))});
  }
  return c;
}

TEST_F(CudaSharedPrefixes, RandomForests) {
  std::vector<AttentionCase> cases;
  for (int i = 0; i < rounds(200); ++i) {
    cases.push_back(random_case(first_seed() * 100000 + static_cast<std::uint64_t>(i)));
  }
  for_each_problem(cases, [&](const AttentionProblem& problem) {
    expect_matches(problem, options_of(problem));
  });
}

}  // namespace
}  // namespace kvarena::test
