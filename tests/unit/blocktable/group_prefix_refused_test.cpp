// The prefix cache of tables with groups: what calls leave behind that were refused, or that came
// while a block waited to leave service.

#include "kvarena/blocktable/block_tables.hpp"

#include "support/status_matchers.hpp"
#include "support/violations.hpp"
#include "unit/blocktable/group_prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace kvarena {
namespace {

using test::GroupPrefixTest;

TEST_F(GroupPrefixTest, ABlockThatWaitsToLeaveServiceIsForgottenToo) {
  ASSERT_OK(make({kFull, kWindow}));
  const SequenceId id = tables_->create_sequence().value();
  grow(id, counted(8));
  const BlockId waiting = tables_->lookup(id, 1, 1).value();
  ASSERT_FALSE(manager_->quarantine(waiting).value());
  ASSERT_OK(tables_->forget_all());
  EXPECT_EQ(manager_->content(waiting), BlockContent::unwritten);
  EXPECT_OK(manager_->restore(waiting));
  EXPECT_OK(tables_->destroy(id));
  EXPECT_EQ(manager_->state(waiting), BlockState::absent) << "its page is free";
}

/// An engine hands over blocks that are not as far from their beginning as in the new sequence.
TEST_F(GroupPrefixTest, BlocksInAnotherPlaceAreNoPrefixToGiveUp) {
  ASSERT_OK(make({kFull}, {.is_on = true, .max_accounts = 2}));
  ASSERT_OK(tables_->set_salt_limits(7, {.cap_blocks = 3}));
  const SequenceId first = tables_->create_sequence({.salt = 7}).value();
  grow(first, counted(12));
  std::array<BlockId, 3> ids;
  std::array<Generation, 3> generations;
  for (std::size_t i = 0; i < 3; ++i) {  // the last block first
    ids[i] = tables_->lookup(first, 2 - static_cast<std::int64_t>(i), 0).value();
    generations[i] = manager_->generation(ids[i]);
  }
  for (const std::size_t count : {1U, 2U, 3U}) {
    const GroupBlocks some{0, std::span(ids).first(count), std::span(generations).first(count)};
    const Result<SequenceId> second = tables_->create_sequence_from(
        4 * static_cast<std::int64_t>(count), std::span(&some, 1), {.salt = 7});
    ASSERT_OK(second);
    EXPECT_OK(tables_->truncate(*second, 2));
    EXPECT_OK(tables_->destroy(*second));
    EXPECT_OK(tables_->check_invariants());
  }
  EXPECT_OK(tables_->destroy(first));
  EXPECT_EQ(tables_->match({.tokens = counted(30), .salt = 7})->tokens, 12);
}

TEST_F(GroupPrefixTest, ARefusedBeginLeavesTheOrderOfEviction) {
  const auto first_evicted = [this](bool begins_in_vain) {
    EXPECT_OK(make({kFull, kWindow}, {.is_on = true}, 8));
    std::array<std::array<BlockId, 2>, 2> ids;
    std::array<std::array<Generation, 2>, 2> generations;
    const SequenceId first = tables_->create_sequence().value();
    grow(first, counted(8));
    for (std::size_t g = 0; g < 2; ++g) {
      for (std::size_t i = 0; i < 2; ++i) {
        ids[g][i] =
            tables_->lookup(first, static_cast<std::int64_t>(i), static_cast<int>(g)).value();
        generations[g][i] = manager_->generation(ids[g][i]);
      }
    }
    EXPECT_OK(tables_->destroy(first));
    compute(counted(8, 100), 8);
    if (begins_in_vain) {
      --generations[1][1].value;
      const std::array<GroupBlocks, 2> blocks{
          {{0, ids[0], generations[0]}, {0, ids[1], generations[1]}}};
      const test::ViolationRecorder violations;
      EXPECT_FAILS(tables_->create_sequence_from(8, blocks), stale_handle, block);
    }
    const SequenceId last = tables_->create_sequence({.salt = 9}).value();
    const AppendDemand demand{.sequence = last, .num_tokens = 8};
    EXPECT_OK(tables_->append(std::span(&demand, 1)));
    const std::span<const BlockId> evicted = manager_->evicted();
    std::vector<BlockId> list(evicted.begin(), evicted.end());
    EXPECT_OK(tables_->destroy(last));
    return list;
  };
  const std::vector<BlockId> usual = first_evicted(false);
  EXPECT_EQ(usual.size(), 4U);
  EXPECT_EQ(first_evicted(true), usual);
}

}  // namespace
}  // namespace kvarena
