// Staging a step and publishing it take nothing from the heap.

#include "support/heap_counter.hpp"
#include "support/status_matchers.hpp"
#include "unit/step/steady_steps.hpp"
#include "unit/step/step_publisher_fixture.hpp"

#include "step/device_tables_memory.hpp"
#include "step/staging_ring.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvarena {
namespace {

TEST(SteadyState, TheHeapCounterCounts) {
  const test::HeapCounter heap;
  const std::vector<int> something(100);
  EXPECT_GE(heap.count(), 1) << something.size();
}

TEST(SteadyState, StagingAllocatesNothing) {
  const DeviceTablesMemory plan = plan_memory(test::SteadySteps::options());
  std::vector<std::max_align_t> memory(static_cast<std::size_t>(plan.staging_bytes) /
                                       sizeof(std::max_align_t));
  StagingRing ring(reinterpret_cast<std::byte*>(memory.data()) + plan.ring, plan.shape);
  test::SteadySteps steps;
  const test::HeapCounter heap;
  bool all_ok = true;
  for (int i = 0; i < 500; ++i) {
    all_ok &= ring.stage(steps.tables, steps.next()).is_ok();
    ring.advance();
  }
  const std::int64_t allocations = heap.count();
  EXPECT_EQ(allocations, 0);
  EXPECT_TRUE(all_ok);
  EXPECT_GT(steps.tables.stats().copies_on_write, 0U);
}

TEST(SteadyState, PublishingAllocatesNothing) {
  test::PublishedPool pool(64, 7);
  std::vector<SequenceId> sequences;
  for (int i = 0; i < 6; ++i) sequences.push_back(pool.add(10 + i));
  const Ticket ticket = pool.manager.open_ticket().value();
  ASSERT_OK(pool.tables.destroy(sequences[2], ticket));
  const test::HeapCounter heap;
  for (std::uint64_t step = 1; step <= 500; ++step) {
    pool.publisher.begin_step();
    if (step % 3 == 0) pool.publisher.request_details();
    pool.publisher.publish({.steps_ended = step});
  }
  const std::int64_t allocations = heap.count();
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(pool.publisher.snapshot().step, 500U);
  EXPECT_EQ(pool.publisher.details().step, 498U);
  EXPECT_EQ(pool.publisher.details().holders.size(), 5U);
  EXPECT_EQ(pool.publisher.snapshot().audit.passes, 50U);
}

}  // namespace
}  // namespace kvarena
