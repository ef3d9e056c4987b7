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
}

}  // namespace
}  // namespace kvarena
