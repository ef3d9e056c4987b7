// Staging a step takes nothing from the heap.

#include "support/heap_counter.hpp"
#include "support/status_matchers.hpp"
#include "unit/step/steady_steps.hpp"

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

}  // namespace
}  // namespace kvarena
