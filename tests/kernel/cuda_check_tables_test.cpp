// Checked tables on the GPU: every entry that a query token needs, and no other.

#include "kernel/attention_case.hpp"
#include "kernel/cuda_pool.hpp"
#include "kvarena/attention/cuda_attention.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvarena::test {
namespace {

/// Five rows of six entries over a pool of 100 blocks of 16 tokens.
class CudaCheckTables : public CudaTest {
 protected:
  static constexpr std::int32_t kRows = 5;
  static constexpr std::int32_t kEntries = 6;

  Status check() {
    const DeviceArray<BlockId> tables(entries_);
    const DeviceArray<std::int64_t> offsets(offsets_);
    const DeviceArray<std::int32_t> lengths(lengths_);
    const DeviceArray<std::uint64_t> scratch(std::size_t{2});
    AttentionArgs args = problem_.args(nullptr, nullptr);
    args.kv.num_blocks = 100;
    args.window_tokens = window_;
    args.q_offsets = nullptr;
    args.batch = {.tables = {.entries = tables.data(),
                             .pages = nullptr,
                             .row_offsets = offsets.data(),
                             .page_shift = 0,
                             .num_rows = kRows},
                  .seq_lens = lengths.data(),
                  .num_blocks = lengths.data(),
                  .num_rows = kRows};
    const Status status =
        cuda::check_tables(args, const_cast<std::uint64_t*>(scratch.data()), stream_);
    place_ = scratch.download()[0];
    return status;
  }
  void set(std::int32_t row, std::int32_t entry, std::int32_t value) {
    entries_[static_cast<std::size_t>(row * kEntries + entry)] = BlockId{value};
  }

  AttentionProblem problem_{AttentionCase{}};
  std::vector<BlockId> entries_ = std::vector<BlockId>(kRows * kEntries, BlockId{99});
  std::vector<std::int64_t> offsets_{0, 6, 12, 18, 24};
  std::vector<std::int32_t> lengths_{96, 0, 17, 16, 95};
  std::int32_t window_ = 0;
  std::uint64_t place_ = 0;
};

TEST_F(CudaCheckTables, TheFirstWrongEntryInRowOrderIsNamed) {
  EXPECT_OK(check());
  set(4, 5, 100);
  set(4, 2, -1);
  const Status last_row = check();
  EXPECT_EQ(last_row.code, StatusCode::invalid_argument);
  EXPECT_EQ(last_row.resource, Resource::block_index);
  EXPECT_EQ(place_, std::uint64_t{4} << 32 | 2);
  set(2, 1, 1 << 28);
  const Status third_row = check();
  EXPECT_EQ(place_, std::uint64_t{2} << 32 | 1);
  EXPECT_NE(describe_attention(third_row).find("268435456"), std::string::npos)
      << describe_attention(third_row);
}

TEST_F(CudaCheckTables, EntriesThatNoTokenNeedsMayHoldAnything) {
  for (std::int32_t entry = 0; entry < kEntries; ++entry) set(1, entry, -1);
  set(2, 2, -1);
  set(3, 1, 1 << 30);
  EXPECT_OK(check());
  set(0, 0, -1);
  EXPECT_FALSE(check().is_ok());
  window_ = 80;  // of 96 tokens: the first block is out of sight
  EXPECT_OK(check());
  window_ = 81;
  EXPECT_FALSE(check().is_ok());
}

}  // namespace
}  // namespace kvarena::test
