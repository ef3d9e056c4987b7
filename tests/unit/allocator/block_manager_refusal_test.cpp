// Every documented status of every call, provoked; and that nothing changed.

#include "block_manager_fixture.hpp"
#include "kvarena/base/layout.hpp"

namespace kvarena::test {
namespace {

class BlockRefusalTest : public BlockManagerTest {
 protected:
  ViolationRecorder recorder_;
};

TEST_F(BlockRefusalTest, CreateNamesTheOptionItsValueAndItsRange) {
  const auto expect = [](const BlockManagerOptions& options, Option option, std::int64_t value,
                         std::int64_t smallest) {
    const Status status = BlockManager::create(options).status();
    EXPECT_EQ(status.code, StatusCode::invalid_argument);
    EXPECT_EQ(status.option, option) << describe(status);
    EXPECT_EQ(static_cast<std::int64_t>(status.subject), value);
    EXPECT_EQ(static_cast<std::int64_t>(status.required), smallest);
    EXPECT_NE(describe(status).find(std::to_string(value)), std::string::npos);
  };
  expect({.num_blocks = 0}, Option::num_blocks, 0, 1);
  expect({.num_blocks = -3}, Option::num_blocks, -3, 1);
  expect({.num_blocks = KvLayout::kMaxBlocks + 1}, Option::num_blocks, KvLayout::kMaxBlocks + 1, 1);
  expect({.num_blocks = 4, .watermark_blocks = -1}, Option::watermark_blocks, -1, 0);
  expect({.num_blocks = 4, .watermark_blocks = 5}, Option::watermark_blocks, 5, 0);
  expect({.num_blocks = 4, .max_holders = 0}, Option::max_holders, 0, 1);
  expect({.num_blocks = 4, .max_open_tickets = -2}, Option::max_open_tickets, -2, 1);
  expect({.num_blocks = 4, .max_fence_entries = -1}, Option::max_fence_entries, -1, 0);
}

TEST_F(BlockRefusalTest, AnUrgencyThatIsNoneTakesNothing) {
  create(4);
  const HolderId h = holder();
  std::vector<BlockId> ids(2);
  std::vector<Generation> generations(2);
  EXPECT_REFUSED(manager().allocate(h, ids, generations, static_cast<Urgency>(99)),
                 invalid_argument, urgency);
  EXPECT_EQ(manager().stats().referenced, 0);
}

TEST_F(BlockRefusalTest, APurposeForgesNoLineOfTheExplanation) {
  create(4);
  const HolderId h = manager().register_holder({.purpose = "x\nfree: 99\x1b"}).value();
  ASSERT_OK(manager().reserve(h, 1));
  const std::string text = to_string(manager().explain(9));
  EXPECT_NE(text.find("x?free: 99?"), std::string::npos) << text;
}

TEST_F(BlockRefusalTest, WhatRunsOutSaysWhichOptionToRaise) {
  create({.num_blocks = 2, .max_holders = 1, .max_open_tickets = 1});
  static_cast<void>(holder());
  EXPECT_REFUSES(manager().register_holder({}), exhausted, max_holders);
  ASSERT_OK(manager().open_ticket());
  EXPECT_REFUSES(manager().open_ticket(), exhausted, max_open_tickets);
}

TEST_F(BlockRefusalTest, HoldersRunOutAndComeBack) {
  create({.num_blocks = 2, .max_holders = 2});
  const HolderId a = holder();
  const HolderId b = holder();
  EXPECT_NE(a, b);
  EXPECT_REFUSED(manager().register_holder({}), exhausted, holder);
  ASSERT_OK(manager().unregister_holder(a));
  const HolderId c = holder();
  EXPECT_NE(c, a) << "holder ids are never reused";
  EXPECT_REFUSED(manager().unregister_holder(a), not_found, holder);
}

TEST_F(BlockRefusalTest, AHolderWithReferencesStays) {
  create(3);
  const HolderId h = holder();
  const Handles two = take(h, 2);
  EXPECT_REFUSED(manager().unregister_holder(h), failed_precondition, holder);
  EXPECT_EQ(manager().unregister_holder(h).available, 2U) << "the references it still has";
  ASSERT_OK(release(h, two));
  EXPECT_OK(manager().unregister_holder(h));
  EXPECT_REFUSED(manager().unregister_holder(kNoHolder), not_found, holder);
}

TEST_F(BlockRefusalTest, AllocateTakesAllOrNothing) {
  create(4);
  const HolderId h = holder();
  take(h, 3);
  EXPECT_REFUSED(try_take(h, 2), exhausted, block);
  const Status status = try_take(h, 2).status();
  EXPECT_EQ(status.required, 2U);
  EXPECT_EQ(status.available, 1U);
  EXPECT_EQ(status.subject, h.value);
  EXPECT_EQ(manager().stats().exhaustions, 2U);
  EXPECT_EQ(take(h, 1).raw(), (std::vector<std::int32_t>{3}));
}

TEST_F(BlockRefusalTest, AllocateRefusesStrangersAndUnequalSpans) {
  create(4);
  const HolderId h = holder();
  EXPECT_REFUSED(try_take(HolderId(999), 1), not_found, holder);
  std::vector<BlockId> ids(2);
  std::vector<Generation> generations(1);
  EXPECT_REFUSED(manager().allocate(h, ids, generations), invalid_argument, span_size);
  const std::vector<HolderDemand> three{{h, 3}};
  generations.resize(2);
  EXPECT_REFUSED(manager().allocate_each(three, ids, generations), invalid_argument, span_size);
  const std::vector<HolderDemand> twice{{h, 1}, {h, 1}};
  EXPECT_REFUSED(manager().allocate_each(twice, ids, generations), duplicate_argument, holder);
  const std::vector<HolderDemand> stranger{{h, 1}, {HolderId(999), 1}};
  EXPECT_REFUSED(manager().allocate_each(stranger, ids, generations), not_found, holder);
}

TEST_F(BlockRefusalTest, ACallForManyNamesTheFirstThatDidNotFit) {
  create(5);
  const HolderId a = holder();
  const HolderId b = holder();
  const HolderId c = holder();
  const std::vector<HolderDemand> demands{{a, 2}, {b, 4}, {c, 1}};
  std::vector<BlockId> ids(7);
  std::vector<Generation> generations(7);
  EXPECT_REFUSED(manager().allocate_each(demands, ids, generations), exhausted, block);
  EXPECT_EQ(manager().allocate_each(demands, ids, generations).status().subject, b.value);
}

TEST_F(BlockRefusalTest, DoubleReleaseIsCaughtAndReported) {
  create(3);
  const HolderId h = holder();
  const Handles two = take(h, 2);
  ASSERT_OK(release(h, two.pick({0})));
  EXPECT_REFUSED(release(h, two.pick({0})), double_release, block);
  ASSERT_EQ(recorder_.entries().size(), 1U);
  EXPECT_EQ(recorder_.entries()[0].status.subject, static_cast<std::uint64_t>(two.ids[0].value));
  EXPECT_EQ(recorder_.entries()[0].call, "BlockManager::release");
  EXPECT_REFUSED(release(h, two.pick({1, 1})), double_release, block);
  EXPECT_OK(release(h, two.pick({1})));
}

TEST_F(BlockRefusalTest, StaleHandlesAreCaughtWhoeverHoldsTheBlockNow) {
  create(1);
  const HolderId a = holder();
  const HolderId b = holder();
  const Handles old = take(a, 1);
  ASSERT_OK(release(a, old));
  const Handles fresh = take(b, 1);
  EXPECT_EQ(fresh.ids[0], old.ids[0]);
  EXPECT_NE(fresh.generations[0], old.generations[0]);
  EXPECT_REFUSED(release(b, old), stale_handle, block);
  EXPECT_REFUSED(retain(a, old), stale_handle, block);
  EXPECT_REFUSED(manager().set_content(old.ids[0], old.generations[0], BlockContent::published),
                 stale_handle, block);
  EXPECT_EQ(recorder_.entries().size(), 2U);
  EXPECT_OK(release(b, fresh));
}

TEST_F(BlockRefusalTest, AHolderCannotReleaseMoreThanItHolds) {
  create(3);
  const HolderId a = holder();
  const HolderId b = holder();
  const Handles of_a = take(a, 2);
  EXPECT_REFUSED(release(b, of_a.pick({0})), reference_underflow, holder);
  take(b, 1);
  EXPECT_REFUSED(release(b, of_a), reference_underflow, holder);
  const Status status = release(b, of_a);
  EXPECT_EQ(status.required, 2U);
  EXPECT_EQ(status.available, 1U);
}

TEST_F(BlockRefusalTest, ReleaseRefusesStrangersRangesAndUnequalSpans) {
  create(2);
  const HolderId h = holder();
  Handles one = take(h, 1);
  EXPECT_REFUSED(release(HolderId(12345), one), not_found, holder);
  EXPECT_REFUSED(manager().release(h, one.ids, {}), invalid_argument, span_size);
  EXPECT_REFUSED(manager().retain(h, one.ids, {}), invalid_argument, span_size);
  EXPECT_REFUSED(manager().release_after(ticket(), h, one.ids, {}), invalid_argument, span_size);
  for (const std::int32_t wrong : {-1, 2, 1 << 28}) {
    one.ids[0] = BlockId(wrong);
    EXPECT_REFUSED(release(h, one), not_found, block);
    EXPECT_REFUSED(retain(h, one), not_found, block);
    EXPECT_REFUSED(release_after(ticket(), h, one), not_found, block);
    EXPECT_REFUSED(manager().set_content(one.ids[0], Generation(0), BlockContent::published),
                   not_found, block);
    EXPECT_REFUSED(manager().quarantine(one.ids[0]), not_found, block);
    EXPECT_REFUSED(manager().restore(one.ids[0]), not_found, block);
  }
}

TEST_F(BlockRefusalTest, RetainNeedsAHolderAndALiveBlock) {
  create(3);
  const HolderId h = holder();
  const Handles two = take(h, 2);
  ASSERT_OK(release(h, two.pick({1})));
  EXPECT_REFUSED(retain(h, two), stale_handle, block);
  EXPECT_REFUSED(retain(HolderId(77), two.pick({0})), not_found, holder);
  EXPECT_OK(retain(h, two.pick({0, 0})));
  EXPECT_EQ(manager().reference_count(two.ids[0]), 3U);
}

TEST_F(BlockRefusalTest, RevivingWhatIsPromisedToOthersIsExhaustion) {
  create(2);
  const HolderId h = holder();
  const HolderId other = holder();
  const Handles two = take(h, 2);
  for (const std::size_t i : {0U, 1U}) {
    ASSERT_OK(manager().set_content(two.ids[i], two.generations[i], BlockContent::published));
  }
  ASSERT_OK(release(h, two));
  ASSERT_OK(manager().reserve(other, 2));
  EXPECT_REFUSED(retain(h, two.pick({0})), exhausted, block);
  EXPECT_OK(retain(other, two.pick({0})));
  EXPECT_EQ(manager().stats().reserved, 1);
}

TEST_F(BlockRefusalTest, ReleaseAfterNeedsAnOpenTicketAndRoom) {
  create({.num_blocks = 4, .max_open_tickets = 4, .max_fence_entries = 2});
  const HolderId h = holder();
  const Handles all = take(h, 4);
  EXPECT_REFUSED(release_after(Ticket(1), h, all), not_found, ticket);
  const Ticket t = ticket();
  EXPECT_REFUSED(release_after(kNoTicket, h, all), not_found, ticket);
  EXPECT_REFUSED(release_after(t, h, all.pick({0, 1, 2})), exhausted, fence_entry);
  EXPECT_OK(release_after(t, h, all.pick({0, 1})));
  EXPECT_EQ(manager().fence_entries_available(), 0);
  EXPECT_REFUSED(release_after(t, h, all.pick({2})), exhausted, fence_entry);
  EXPECT_OK(manager().retire(t));
  EXPECT_REFUSED(release_after(t, h, all.pick({2})), not_found, ticket);
  EXPECT_EQ(manager().fence_entries_available(), 2);
}

TEST_F(BlockRefusalTest, ReleaseAfterCatchesMisuseAsReleaseDoes) {
  create(4);
  const HolderId h = holder();
  const HolderId poor = holder();
  const Handles all = take(h, 4);
  const Ticket t = ticket();
  ASSERT_OK(release(h, all.pick({3})));
  EXPECT_REFUSED(release_after(t, h, all.pick({0, 3})), double_release, block);
  EXPECT_REFUSED(release_after(t, h, all.pick({0, 1, 0})), double_release, block);
  EXPECT_REFUSED(release_after(t, poor, all.pick({0})), reference_underflow, holder);
  EXPECT_REFUSED(release_after(t, HolderId(5), all.pick({0})), not_found, holder);
  ASSERT_OK(release_after(t, h, all.pick({0})));
  EXPECT_REFUSED(release_after(t, h, all.pick({0})), double_release, block);
  EXPECT_REFUSED(release(h, all.pick({0})), double_release, block);
}

TEST_F(BlockRefusalTest, TicketsRunOutWhenAsManyAreOpen) {
  create({.num_blocks = 2, .max_open_tickets = 3});
  const Ticket first = ticket();
  const Ticket second = ticket();
  ticket();
  EXPECT_REFUSED(manager().open_ticket(), exhausted, ticket);
  ASSERT_OK(manager().retire(second));
  EXPECT_GT(ticket(), second) << "tickets increase and are never reused";
  EXPECT_REFUSED(manager().open_ticket(), exhausted, ticket);
  ASSERT_OK(manager().retire(first));
  EXPECT_REFUSED(manager().retire(first), not_found, ticket);
  EXPECT_REFUSED(manager().retire(kNoTicket), not_found, ticket);
  EXPECT_REFUSED(manager().retire(Ticket(1000)), not_found, ticket);
}

TEST_F(BlockRefusalTest, ReservationsFollowTheAdmissionRule) {
  create(10, 3);
  const HolderId h = holder();
  EXPECT_REFUSED(manager().reserve(h, 8), exhausted, reservation);
  EXPECT_EQ(manager().reserve(h, 8).available, 7U);
  EXPECT_REFUSED(manager().reserve(h, 1000), exhausted, reservation);
  EXPECT_REFUSED(manager().reserve(h, -1), invalid_argument, reservation);
  EXPECT_REFUSED(manager().reserve(HolderId(3), 1), not_found, holder);
  EXPECT_OK(manager().reserve(h, 7));
}

TEST_F(BlockRefusalTest, RestoreNeedsAnOfflineBlock) {
  create(2);
  EXPECT_REFUSED(manager().restore(BlockId(0)), failed_precondition, block);
  take(holder(), 1);
  EXPECT_REFUSED(manager().restore(BlockId(0)), failed_precondition, block);
}

TEST_F(BlockRefusalTest, QuarantineLeavesWhatIsPromised) {
  create(2);
  const HolderId h = holder();
  ASSERT_OK(manager().reserve(h, 2));
  EXPECT_REFUSED(manager().quarantine(BlockId(1)), exhausted, reservation);
  ASSERT_OK(manager().reserve(h, 1));
  EXPECT_OK(manager().quarantine(BlockId(1)));
}

TEST_F(BlockRefusalTest, CachingNeedsALiveHandle) {
  create(2);
  const HolderId h = holder();
  const Handles one = take(h, 1);
  ASSERT_OK(release(h, one));
  EXPECT_REFUSED(manager().set_content(one.ids[0], one.generations[0], BlockContent::published),
                 double_release, block);
}

TEST_F(BlockRefusalTest, TheDefaultHandlerLogsAndTheCallIsRefused) {
  create(1);
  const HolderId h = holder();
  const Handles one = take(h, 1);
  ASSERT_OK(release(h, one));
  const ViolationHandler recording = set_violation_handler(nullptr);
  EXPECT_REFUSED(release(h, one), double_release, block);
  set_violation_handler(recording);
}

}  // namespace
}  // namespace kvarena::test
