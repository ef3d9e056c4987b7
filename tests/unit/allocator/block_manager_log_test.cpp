// The operation log: every mutating call, its arguments and its outcome, in order.

#include "block_manager_fixture.hpp"
#include "kvarena/allocator/operation_log.hpp"

namespace kvarena::test {
namespace {

class Collector final : public OperationLog {
 public:
  struct Entry {
    Operation operation;
    std::vector<BlockId> ids;
  };
  void append(const Operation& operation) override {
    entries.push_back({operation, {operation.ids.begin(), operation.ids.end()}});
  }
  std::vector<Entry> entries;
};

class BlockLogTest : public BlockManagerTest {
 protected:
  void SetUp() override { create({.num_blocks = 4, .max_open_tickets = 2, .log = &log_}); }
  const Collector::Entry& last() const { return log_.entries.back(); }

  Collector log_;
  ViolationRecorder recorder_;
};

TEST_F(BlockLogTest, EveryMutatingCallIsLoggedOnceWithItsOutcome) {
  const HolderId h = holder();
  EXPECT_EQ(last().operation.kind, OperationKind::register_holder);
  EXPECT_EQ(last().operation.holder, h);
  ASSERT_OK(manager().reserve(h, 2));
  EXPECT_EQ(last().operation.kind, OperationKind::reserve);
  EXPECT_EQ(last().operation.count, 2);
  const Handles two = take(h, 2, Urgency::admission);
  EXPECT_EQ(last().operation.kind, OperationKind::allocate);
  EXPECT_EQ(last().operation.flag, static_cast<std::uint8_t>(Urgency::admission));
  EXPECT_EQ(last().operation.count, 2);
  EXPECT_EQ(last().ids, two.ids);
  ASSERT_OK(retain(h, two.pick({1})));
  EXPECT_EQ(last().operation.kind, OperationKind::retain);
  EXPECT_EQ(last().ids, two.pick({1}).ids);
  ASSERT_OK(release(h, two.pick({1})));
  EXPECT_EQ(last().operation.kind, OperationKind::release);
  const Ticket t = ticket();
  EXPECT_EQ(last().operation.kind, OperationKind::open_ticket);
  EXPECT_EQ(last().operation.ticket, 1U);
  ASSERT_OK(release_after(t, h, two.pick({0})));
  EXPECT_EQ(last().operation.kind, OperationKind::release_after);
  EXPECT_EQ(last().operation.ticket, 1U);
  ASSERT_OK(manager().set_content(two.ids[1], two.generations[1], BlockContent::published));
  EXPECT_EQ(last().operation.kind, OperationKind::set_content);
  EXPECT_EQ(last().operation.flag, static_cast<int>(BlockContent::published));
  ASSERT_OK(manager().retire(t));
  EXPECT_EQ(last().operation.kind, OperationKind::retire);
  ASSERT_OK(manager().quarantine(BlockId(3)));
  EXPECT_EQ(last().operation.kind, OperationKind::quarantine);
  EXPECT_EQ(last().ids, (std::vector<BlockId>{BlockId(3)}));
  ASSERT_OK(manager().restore(BlockId(3)));
  EXPECT_EQ(last().operation.kind, OperationKind::restore);
  ASSERT_OK(release(h, two.pick({1})));
  ASSERT_OK(manager().unregister_holder(h));
  EXPECT_EQ(last().operation.kind, OperationKind::unregister_holder);
  for (const Collector::Entry& entry : log_.entries) {
    EXPECT_EQ(entry.operation.outcome, StatusCode::ok);
  }
  EXPECT_EQ(log_.entries.size(), 13U);
}

TEST_F(BlockLogTest, RefusalsAreLoggedToo) {
  const HolderId h = holder();
  EXPECT_FALSE(try_take(h, 5));
  EXPECT_EQ(last().operation.outcome, StatusCode::exhausted);
  EXPECT_EQ(last().operation.count, 5);
  EXPECT_TRUE(last().ids.empty());
  const Handles one = take(h, 1);
  ASSERT_OK(release(h, one));
  EXPECT_FALSE(release(h, one));
  EXPECT_EQ(last().operation.outcome, StatusCode::double_release);
  EXPECT_FALSE(retain(h, one));
  EXPECT_EQ(last().operation.outcome, StatusCode::stale_handle);
  EXPECT_FALSE(manager().retire(Ticket(9)));
  EXPECT_EQ(last().operation.outcome, StatusCode::not_found);
  EXPECT_FALSE(manager().restore(BlockId(0)));
  EXPECT_EQ(last().operation.outcome, StatusCode::failed_precondition);
  ticket();
  ticket();
  EXPECT_FALSE(manager().open_ticket());
  EXPECT_EQ(last().operation.outcome, StatusCode::exhausted);
}

TEST_F(BlockLogTest, ACallForManyIsLoggedHolderByHolder) {
  const HolderId a = holder();
  const HolderId b = holder();
  const std::vector<HolderDemand> demands{{a, 1}, {b, 2}};
  std::vector<BlockId> ids(3);
  std::vector<Generation> generations(3);
  const std::size_t before = log_.entries.size();
  ASSERT_OK(manager().allocate_each(demands, ids, generations));
  ASSERT_EQ(log_.entries.size(), before + 2);
  EXPECT_EQ(log_.entries[before].operation.holder, a);
  EXPECT_EQ(log_.entries[before].ids, (std::vector<BlockId>{ids[0]}));
  EXPECT_EQ(log_.entries[before + 1].operation.holder, b);
  EXPECT_EQ(log_.entries[before + 1].ids, (std::vector<BlockId>{ids[1], ids[2]}));
  EXPECT_EQ(log_.entries[before].operation.left_in_call, 0) << "each can be replayed alone";
}

TEST_F(BlockLogTest, QuestionsAreNotLogged) {
  holder();
  const std::size_t before = log_.entries.size();
  static_cast<void>(manager().stats());
  static_cast<void>(manager().explain(3));
  static_cast<void>(manager().holders());
  static_cast<void>(manager().available_after(Ticket(1)));
  static_cast<void>(manager().check_invariants());
  EXPECT_EQ(log_.entries.size(), before);
}

}  // namespace
}  // namespace kvarena::test
