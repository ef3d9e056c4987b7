// The rows of a group's kernels: what a recorded step counts is enough for every step that it runs.

#include "cache/group_row_counts.hpp"
#include "step/group_rows.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvarena {
namespace {

std::int32_t sum_of(const cuda::RowCounts& rows) {
  return rows.decode + rows.columns + rows.prompts;
}

constexpr TableGroup kFull{PagedKind::full, 16};
constexpr TableGroup kWindow{PagedKind::window, 16, 100};
constexpr TableGroup kChunk{PagedKind::chunk, 4, 8};
constexpr TableGroup kLongChunk{PagedKind::chunk, 16, 8192};
constexpr TableGroup kCross{PagedKind::cross, 16, 64};
constexpr cuda::RowClasses kNone{};
constexpr cuda::RowClasses kDecode{.decode_tokens = 4};
constexpr cuda::RowClasses kBoth{.decode_tokens = 2, .column_tokens = 32};
constexpr cuda::RowClasses kColumns{.column_tokens = 8};

TEST(GroupRowCounts, ARecordedStepHasRoomForEveryStep) {
  std::mt19937 random(5);
  for (const TableGroup& table : {kFull, kWindow, kChunk, kLongChunk, kCross}) {
    for (const cuda::RowClasses& classes : {kNone, kDecode, kBoth, kColumns}) {
      for (const std::int32_t tokens : {1, 2, 3, 5, 16}) {
        const RecordedStep shape{.num_rows = 7, .tokens_per_row = tokens};
        const GroupRowCounts recorded = count_group_rows(table, classes, shape);
        EXPECT_EQ(sum_of(recorded.classes), recorded.num_rows);
        EXPECT_LE(recorded.num_rows, most_rows(table, 7, std::int64_t{7} * tokens));
        for (int round = 0; round < 50; ++round) {
          std::vector<AppendedRow> rows(7);
          for (AppendedRow& row : rows) {
            row.num_new_tokens = tokens;
            row.length_tokens = tokens + static_cast<std::int32_t>(random() % 40);
          }
          const GroupRowCounts counts = count_group_rows(table, classes, rows);
          ASSERT_LE(counts.num_rows, recorded.num_rows);
          ASSERT_EQ(sum_of(counts.classes), counts.num_rows);
          ASSERT_LE(counts.classes.decode_tokens, recorded.classes.decode_tokens);
          ASSERT_LE(counts.classes.column_tokens, recorded.classes.column_tokens);
          ASSERT_TRUE(counts.classes.decode == 0 || recorded.classes.decode > 0);
          ASSERT_TRUE(counts.classes.columns == 0 || recorded.classes.columns > 0);
          ASSERT_TRUE(counts.classes.prompts == 0 || recorded.classes.prompts > 0);
        }
      }
    }
  }
}

TEST(GroupRowCounts, RowsAreCutWhereTheLayersSeeOtherTokens) {
  const std::vector<AppendedRow> rows{{.length_tokens = 20, .num_new_tokens = 7},
                                      {.length_tokens = 3, .num_new_tokens = 1},
                                      {.length_tokens = 9, .num_new_tokens = 0}};
  const GroupRowCounts full = count_group_rows(kFull, kBoth, rows);
  EXPECT_EQ(full.num_rows, 3);
  EXPECT_EQ(full.classes.columns, 1);
  EXPECT_EQ(full.classes.decode, 1);
  const GroupRowCounts chunks = count_group_rows(kChunk, kBoth, rows);
  EXPECT_EQ(chunks.num_rows, 4) << "tokens 13 to 15, 16 to 19; 2; and a row without new ones";
  EXPECT_EQ(chunks.classes.columns, 2);
  EXPECT_EQ(chunks.classes.column_tokens, 4);
  EXPECT_EQ(chunks.classes.decode, 1);
  const GroupRowCounts cross = count_group_rows(kCross, kBoth, rows);
  EXPECT_EQ(cross.num_rows, 9);
  EXPECT_EQ(cross.classes.decode, 8);
  EXPECT_EQ(full.classes.decode_length, 3);
  EXPECT_EQ(count_group_rows(kFull, kColumns, rows).classes.decode_length, 0);
  EXPECT_EQ(cross.classes.decode_length, 0) << "the encoder's tokens are not known";
  const GroupRowCounts few = count_group_rows(kChunk, {.decode_tokens = 8}, rows);
  EXPECT_EQ(few.classes.decode_length, 8 + 4 + 3) << "a row has the tokens of its chunk";
  EXPECT_EQ(few.classes.decode_longest, 8);
}

TEST(GroupRowCounts, ARecordedStepMaySayHowLongItsRowsAre) {
  const auto counts = [](const TableGroup& table, std::int32_t row_tokens) {
    return count_group_rows(table, kDecode, {.num_rows = 7, .row_tokens = row_tokens}).classes;
  };
  EXPECT_EQ(counts(kFull, 0).decode_length, 0) << "unknown";
  EXPECT_EQ(counts(kFull, 100).decode_length, 700);
  EXPECT_EQ(counts(kWindow, 5000).decode_longest, 5000) << "the window is taken into account later";
  EXPECT_EQ(counts(kLongChunk, 100).decode_longest, 100);
  EXPECT_EQ(counts(kChunk, 100).decode_longest, 8) << "a row has the tokens of its chunk";
  EXPECT_EQ(counts(kCross, 100).decode_length, 0) << "the encoder's tokens are not known";
}

/// The largest step of a cache with fp8 K and V, 32 query heads and 8 KV heads, on an H200.
cuda::AttentionShape fp8_shape(std::int32_t head_dim) {
  cuda::AttentionShape shape;
  PlaneView& key = shape.kv.key;
  key = {reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20),
         1 << 20,
         1 << 16,
         0,
         8,
         head_dim,
         DType::fp8_e4m3,
         TileOrder::chunked};
  shape.kv.value = key;
  shape.kv.value.base += 1 << 19;
  shape.kv.block_size = 16;
  shape.kv.num_blocks = 100;
  shape.num_q_heads = 32;
  shape.max_rows = 256;
  shape.num_sms = 132;
  shape.compute_capability = 90;
  return shape;
}

// Decode attention takes 16 query columns where a step has many rows. A step of few rows has other
// classes than the largest one, and its counts are of these.
TEST(StepShape, HasTheClassesOfItsRows) {
  for (const std::int32_t head_dim : {64, 96, 128, 192, 256}) {
    const cuda::AttentionShape largest = fp8_shape(head_dim);
    const cuda::RowClasses all = without_prompts(cuda::row_classes(largest));
    for (std::int32_t num_rows = 1; num_rows <= 300; num_rows += 1 + num_rows / 8) {
      for (const std::int32_t tokens : {1, 2, 3, 4, 8, 32, 64}) {
        const std::vector<AppendedRow> rows(static_cast<std::size_t>(num_rows),
                                            {.length_tokens = 100, .num_new_tokens = tokens});
        const std::int32_t few = count_group_rows(kFull, all, rows).classes.columns;
        const cuda::AttentionShape shape = step_shape(largest, few);
        const cuda::RowClasses classes = cuda::row_classes(shape);
        const cuda::RowCounts counts = count_group_rows(kFull, classes, rows).classes;
        EXPECT_EQ(counts.decode + counts.columns, few) << head_dim << ", " << num_rows;
        EXPECT_LE(std::min(few, 256), shape.max_rows);
        EXPECT_LE(counts.decode_tokens, classes.decode_tokens);
        EXPECT_EQ(without_prompts(classes), all) << head_dim << ", " << num_rows;
        EXPECT_LE(cuda::workspace_bytes(shape).value(), cuda::workspace_bytes(largest).value());
      }
    }
  }
  const auto decode_tokens = [](std::int32_t rows) {
    return cuda::row_classes(step_shape(fp8_shape(128), rows)).decode_tokens;
  };
  EXPECT_EQ(decode_tokens(4), 2);
  EXPECT_EQ(decode_tokens(64), 4);
}

TEST(StepShape, IsRoundedUpToAPowerOfTwo) {
  cuda::AttentionShape largest = fp8_shape(128);
  largest.max_rows = 100;
  EXPECT_EQ(step_shape(largest, 0).max_rows, 1);
  EXPECT_EQ(step_shape(largest, 5).max_rows, 8);
  EXPECT_EQ(step_shape(largest, 64).max_rows, 64);
  EXPECT_EQ(step_shape(largest, 65).max_rows, 100);
  largest.batch_invariant_tokens = 1 << 16;
  EXPECT_EQ(step_shape(largest, 5).max_rows, 8);
  largest.max_run_tokens = 4096;
  EXPECT_EQ(step_shape(largest, 5).max_rows, 100) << "a row's kernel may depend on it";
}

}  // namespace
}  // namespace kvarena
