// Corruption of the order of evictable blocks is found by the proof of the accounts, with every
// policy: by the whole proof, and by a slice of it where blocks show it.

#include "block_manager_fixture.hpp"
#include "support/manager_access.hpp"

#include <functional>
#include <string>

namespace kvarena::test {
namespace {

/// Where the order of evictable blocks is: tail_first has it in the links of the blocks.
enum class Where { anywhere, in_an_order, in_links };

struct Fault {
  const char* name;
  std::function<void(BlockPool&)> plant;
  Where where = Where::anywhere;
};

/// The links of tail_first lead past block 1.
void lead_past(BlockPool& pool) { pool.record(BlockId(2)).word = pool.record(BlockId(1)).word; }

const Fault kFaults[] = {
    {"a block has left the order", [](BlockPool& pool) { pool.order()->hold(BlockId(1)); },
     Where::in_an_order},
    {"a referenced block is in the order",
     [](BlockPool& pool) { pool.order()->insert(BlockId(4)); }, Where::in_an_order},
    {"a block has left the list", lead_past, Where::in_links},
    {"a link leads back",
     [](BlockPool& pool) { pool.record(BlockId(1)).word = pool.record(BlockId(2)).word; },
     Where::in_links},
    {"the count of evictable blocks has drifted",
     [](BlockPool& pool) {
       ++pool.mutable_counts().evictable;
       --pool.mutable_counts().referenced;
     }},
    {"an evictable block has become free in its record",
     [](BlockPool& pool) { pool.record(BlockId(1)).word = 0; }},
    {"a block of the order is held",
     [](BlockPool& pool) { pool.record(BlockId(1)).word = BlockPool::kHeld | 1; }},
};

class EvictionFaultsTest : public BlockManagerTest,
                           public ::testing::WithParamInterface<EvictionPolicy> {
 protected:
  // Blocks 0 to 2 are evictable, 3 and 4 are held.
  void SetUp() override {
    create({.num_blocks = 5, .eviction = GetParam()});
    const HolderId h = holder();
    const Handles all = take(h, 5);
    for (std::size_t i = 0; i < 5; ++i) {
      ASSERT_OK(manager().set_content(all.ids[i], all.generations[i], BlockContent::published));
    }
    ASSERT_OK(release(h, all.pick({2, 1, 0})));
    ASSERT_OK(manager().check_invariants());
  }
  void TearDown() override {}
};

TEST_P(EvictionFaultsTest, AreFound) {
  for (const Fault& fault : kFaults) {
    SetUp();
    const bool has_order = parts_of(manager()).pool.order() != nullptr;
    if (fault.where == (has_order ? Where::in_links : Where::in_an_order)) continue;
    fault.plant(parts_of(manager()).pool);
    EXPECT_EQ(manager().check_invariants().code, StatusCode::invariant_violated) << fault.name;
  }
}

// A block that is evictable by its record and unknown to the order is seen by itself.
TEST_P(EvictionFaultsTest, ASliceSeesABlockThatIsNotInTheOrder) {
  BlockPool& pool = parts_of(manager()).pool;
  if (pool.order() == nullptr) {
    lead_past(pool);
    EXPECT_EQ(manager().check_blocks(0, 3).code, StatusCode::invariant_violated);
    return;
  }
  pool.order()->hold(BlockId(0));
  pool.order()->forget(BlockId(0));
  pool.order()->hold(BlockId(1));
  pool.order()->forget(BlockId(1));
  pool.order()->hold(BlockId(2));
  pool.order()->forget(BlockId(2));
  EXPECT_EQ(manager().check_blocks(0, 3).code, StatusCode::invariant_violated);
}

INSTANTIATE_TEST_SUITE_P(Policies, EvictionFaultsTest, ::testing::ValuesIn(kEvictionPolicies),
                         [](const auto& seen) {
                           std::string name(name_of(seen.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvarena::test
