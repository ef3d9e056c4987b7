#include "kvarena/allocator/arena.hpp"

#include "support/fake_memory_source.hpp"
#include "support/faulty_device.hpp"
#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// 3 layers, 2 heads of 8, f16, 4 tokens a block: planes of 128 bytes, blocks of 768.
KvLayout small_layout() {
  return KvLayout::create({.num_layers = 3,
                           .num_kv_heads = 2,
                           .head_dim_k = 8,
                           .dtype = DType::f16,
                           .block_size_tokens = 4})
      .value();
}
constexpr std::int64_t kPlaneBytes = 128;
constexpr std::int64_t kBlockBytes = 768;

// ---- plan_pool ----------------------------------------------------------------------------------

TEST(PlanPool, TakesABlockCount) {
  const auto plan = plan_pool(small_layout(), {.num_blocks = 10}, 0);
  ASSERT_OK(plan);
  EXPECT_EQ(plan->num_blocks, 10);
  EXPECT_EQ(plan->pool_bytes, 10 * kBlockBytes);
  EXPECT_EQ(plan->slack_bytes, 0);
}

TEST(PlanPool, LeavesLessThanABlockOfABudgetUnused) {
  const KvLayout layout = small_layout();
  for (std::int64_t budget = kBlockBytes; budget <= 5 * kBlockBytes; ++budget) {
    const auto plan = plan_pool(layout, {.budget_bytes = budget}, 0);
    ASSERT_OK(plan);
    ASSERT_EQ(plan->num_blocks, budget / kBlockBytes);
    ASSERT_EQ(plan->pool_bytes + plan->slack_bytes, budget);
    ASSERT_GE(plan->slack_bytes, 0);
    ASSERT_LT(plan->slack_bytes, kBlockBytes);
  }
}

TEST(PlanPool, TakesAllFreeMemoryButAReserve) {
  const auto all = plan_pool(small_layout(), {.all_free_but_bytes = 0}, 4 * kBlockBytes + 5);
  ASSERT_OK(all);
  EXPECT_EQ(all->num_blocks, 4);
  EXPECT_EQ(all->slack_bytes, 5);
  const auto most = plan_pool(small_layout(), {.all_free_but_bytes = 6}, 4 * kBlockBytes + 5);
  ASSERT_OK(most);
  EXPECT_EQ(most->num_blocks, 3);
  EXPECT_EQ(most->slack_bytes, kBlockBytes - 1);
}

TEST(PlanPool, WantsExactlyOneSize) {
  const KvLayout layout = small_layout();
  const struct {
    PoolSize size;
    int num_set;
  } cases[] = {{{}, 0},
               {{.num_blocks = 1, .budget_bytes = kMiB}, 2},
               {{.num_blocks = 1, .all_free_but_bytes = 0}, 2},
               {{.budget_bytes = kMiB, .all_free_but_bytes = 0}, 2},
               {{.num_blocks = 1, .budget_bytes = kMiB, .all_free_but_bytes = 0}, 3}};
  for (const auto& c : cases) {
    EXPECT_EQ(plan_pool(layout, c.size, kMiB).status(),
              invalid_option(Option::size, c.num_set, 1, 1));
  }
}

TEST(PlanPool, RefusesNegativeSizes) {
  const KvLayout layout = small_layout();
  EXPECT_REFUSES(plan_pool(layout, {.num_blocks = -1}, kMiB), invalid_argument, num_blocks);
  EXPECT_REFUSES(plan_pool(layout, {.budget_bytes = -5}, kMiB), invalid_argument, budget_bytes);
  const auto reserve = plan_pool(layout, {.all_free_but_bytes = -2}, kMiB);
  EXPECT_REFUSES(reserve, invalid_argument, all_free_but_bytes);
  EXPECT_EQ(static_cast<std::int64_t>(reserve.status().subject), -2);
}

TEST(PlanPool, SaysWhenNotEvenABlockFits) {
  const KvLayout layout = small_layout();
  EXPECT_EQ(plan_pool(layout, {.budget_bytes = kBlockBytes - 1}, kMiB).status(),
            insufficient_vram(kBlockBytes, kBlockBytes - 1));
  EXPECT_EQ(plan_pool(layout, {.all_free_but_bytes = 100}, 300).status(),
            insufficient_vram(kBlockBytes, 200));
  EXPECT_EQ(plan_pool(layout, {.all_free_but_bytes = kMiB}, 300).status(),
            insufficient_vram(kBlockBytes, 0));
}

TEST(PlanPool, RefusesMoreBlocksThanIdsCanName) {
  EXPECT_REFUSES(plan_pool(small_layout(), {.num_blocks = std::int64_t{1} << 40}, kMiB),
                 invalid_argument, num_blocks);
}

// ---- Arena --------------------------------------------------------------------------------------

class ArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = HostDevice::create({.capacity_bytes = kMiB, .memory = &memory_});
    ASSERT_OK(created);
    device_ = std::move(created).value();
  }
  void TearDown() override {
    device_.reset();
    EXPECT_EQ(memory_.num_live, 0);
  }
  Result<Arena> create(PoolSize size, BlockOrder order = BlockOrder::block_major) {
    return Arena::create(*device_, small_layout(), {.size = size, .order = order});
  }

  test::FakeMemorySource memory_;
  std::unique_ptr<HostDevice> device_;
};

TEST_F(ArenaTest, IsOneAllocationForKv) {
  {
    const auto arena = create({.num_blocks = 100});
    ASSERT_OK(arena);
    EXPECT_EQ(arena->num_blocks(), 100);
    EXPECT_EQ(arena->bytes(), 100 * kBlockBytes);
    EXPECT_EQ(device_->call_counts().allocate, 1U);
    const auto record = device_->tracker().find(arena->base());
    ASSERT_OK(record);
    EXPECT_EQ(record->purpose, MemoryPurpose::kv_cache);
    EXPECT_EQ(record->kind, MemoryKind::device);
    EXPECT_EQ(record->bytes, 100U * kBlockBytes);
    EXPECT_EQ(record->description, "kv arena");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena->base()) % 256, 0U);
  }
  EXPECT_EQ(device_->call_counts().free, 1U);
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, 0U);
}

TEST_F(ArenaTest, TakesAllFreeMemoryButAReserve) {
  const auto arena = create({.all_free_but_bytes = 1000});
  ASSERT_OK(arena);
  EXPECT_EQ(arena->num_blocks(), (kMiB - 1000) / kBlockBytes);
  EXPECT_LT(device_->memory_info()->free_bytes, 1000U + kBlockBytes);
  EXPECT_GE(device_->memory_info()->free_bytes, 1000U);
}

TEST_F(ArenaTest, IsWhatThePlannerPredicts) {
  for (const PoolSize size : {PoolSize{.num_blocks = 7}, PoolSize{.budget_bytes = 99999},
                              PoolSize{.all_free_but_bytes = 12345}}) {
    const auto plan = plan_pool(small_layout(), size, kMiB);
    const auto arena = create(size);
    ASSERT_OK(plan);
    ASSERT_OK(arena);
    EXPECT_EQ(arena->num_blocks(), plan->num_blocks);
    EXPECT_EQ(device_->tracker().breakdown().total.bytes,
              static_cast<std::uint64_t>(plan->pool_bytes));
  }
}

TEST_F(ArenaTest, RefusesWhatTheDeviceDoesNotHave) {
  const auto arena = create({.budget_bytes = 2 * kMiB});
  const std::int64_t wanted = 2 * kMiB / kBlockBytes * kBlockBytes;
  EXPECT_EQ(arena.status(), insufficient_vram(static_cast<std::uint64_t>(wanted),
                                              static_cast<std::uint64_t>(kMiB)));
  const std::string text = device_->describe(arena.status());
  EXPECT_NE(text.find("KVCache \"kv arena\""), std::string::npos) << text;
  EXPECT_EQ(device_->tracker().breakdown().allocations_ever, 0U);
  EXPECT_OK(create({.budget_bytes = kMiB}));
}

/// Every plane of every block lies inside the arena, aligned, and shares no byte with another.
void expect_disjoint(const Arena& arena) {
  std::set<std::int64_t> starts;
  for (std::int32_t block = 0; block < arena.num_blocks(); ++block) {
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      for (const PlaneKind kind : {PlaneKind::key, PlaneKind::value}) {
        ASSERT_TRUE(arena.contains(BlockId{block}, layer, kind));
        const std::int64_t start = arena.address(BlockId{block}, layer, kind) - arena.base();
        ASSERT_EQ(start % kPlaneBytes, 0);
        ASSERT_GE(start, 0);
        ASSERT_LE(start + kPlaneBytes, arena.bytes());
        ASSERT_TRUE(starts.insert(start).second);
      }
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(starts.size()) * kPlaneBytes, arena.bytes());
}

TEST_F(ArenaTest, BlockMajorKeepsABlockTogether) {
  const auto arena = create({.num_blocks = 9});
  ASSERT_OK(arena);
  expect_disjoint(*arena);
  EXPECT_EQ(arena->address(BlockId{2}, 0, PlaneKind::key) - arena->base(), 2 * kBlockBytes);
  EXPECT_EQ(arena->address(BlockId{2}, 1, PlaneKind::value) - arena->base(),
            2 * kBlockBytes + 3 * kPlaneBytes);
}

TEST_F(ArenaTest, LayerMajorKeepsAPlaneTogether) {
  const auto arena = create({.num_blocks = 9}, BlockOrder::layer_major);
  ASSERT_OK(arena);
  expect_disjoint(*arena);
  EXPECT_EQ(arena->address(BlockId{2}, 0, PlaneKind::key) - arena->base(), 2 * kPlaneBytes);
  EXPECT_EQ(arena->address(BlockId{2}, 1, PlaneKind::value) - arena->base(),
            (3 * 9 + 2) * kPlaneBytes);
}

TEST_F(ArenaTest, KnowsWhichBlocksAndPlanesExist) {
  const auto arena = create({.num_blocks = 9});
  ASSERT_OK(arena);
  EXPECT_TRUE(arena->contains(BlockId{8}, 2, PlaneKind::value));
  EXPECT_FALSE(arena->contains(BlockId{9}, 0, PlaneKind::key));
  EXPECT_FALSE(arena->contains(kNoBlock, 0, PlaneKind::key));
  EXPECT_FALSE(arena->contains(BlockId{0}, 3, PlaneKind::key));
  EXPECT_FALSE(arena->contains(BlockId{0}, -1, PlaneKind::key));
  EXPECT_FAILS(arena->layer_view(3), invalid_argument, layer);
  EXPECT_FAILS(arena->layer_view(-1), invalid_argument, layer);
}

TEST_F(ArenaTest, ViewsAgreeWithAddresses) {
  for (const BlockOrder order : {BlockOrder::block_major, BlockOrder::layer_major}) {
    const auto arena = create({.num_blocks = 9}, order);
    ASSERT_OK(arena);
    const auto view = arena->layer_view(1);
    ASSERT_OK(view);
    EXPECT_EQ(view->block_size, 4);
    EXPECT_EQ(view->num_blocks, 9);
    for (const auto& [plane, kind] :
         {std::pair{view->key, PlaneKind::key}, std::pair{view->value, PlaneKind::value}}) {
      EXPECT_EQ(plane.base + 5 * plane.block_stride, arena->address(BlockId{5}, 1, kind));
      EXPECT_EQ(plane.num_heads, 2);
      EXPECT_EQ(plane.head_dim, 8);
      EXPECT_EQ(plane.token_stride, 16);
      EXPECT_EQ(plane.head_stride, 64);
      EXPECT_EQ(plane.dtype, DType::f16);
    }
  }
}

TEST_F(ArenaTest, AddressesAreSixtyFourBit) {
  // 1,000 blocks of 8 MiB: past 2^32 bytes. Nothing is touched, so nothing is committed.
  const auto layout = KvLayout::create({.num_layers = 32,
                                        .num_kv_heads = 32,
                                        .head_dim_k = 128,
                                        .dtype = DType::f16,
                                        .block_size_tokens = 16});
  ASSERT_OK(layout);
  const auto device = HostDevice::create({.capacity_bytes = std::uint64_t{16} << 30});
  ASSERT_OK(device);
  const auto arena = Arena::create(**device, *layout, {.size = {.num_blocks = 1000}});
  if (!arena) GTEST_SKIP() << "this machine cannot spare 8.4 GB: " << describe(arena.status());
  EXPECT_EQ(arena->bytes(), std::int64_t{1000} * 8 * kMiB);
  std::byte* last = arena->address(BlockId{999}, 31, PlaneKind::value);
  EXPECT_EQ(last - arena->base(), arena->bytes() - arena->layout().plane_bytes(63));
  std::memset(last, 1, static_cast<std::size_t>(arena->layout().plane_bytes(63)));
}

TEST_F(ArenaTest, MovesItsMemory) {
  auto first = create({.num_blocks = 3});
  ASSERT_OK(first);
  std::byte* base = first->base();
  Arena second = std::move(first).value();
  EXPECT_EQ(second.base(), base);
  EXPECT_EQ(device_->call_counts().free, 0U);

  auto other = create({.num_blocks = 5});
  ASSERT_OK(other);
  second = std::move(other).value();
  EXPECT_EQ(second.num_blocks(), 5);
  EXPECT_EQ(device_->call_counts().free, 1U);  // the first pool went
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, 5U * kBlockBytes);
}

TEST_F(ArenaTest, LeavesNothingBehindWhicheverCallFails) {
  int created = 0;
  const std::int64_t num_calls = test::fail_every_call(
      *device_,
      [&](Device& device) {
        const auto arena =
            Arena::create(device, small_layout(), {.size = {.all_free_but_bytes = 0}});
        created += arena.is_ok() ? 1 : 0;
      },
      [&](std::int64_t n) {
        EXPECT_EQ(device_->tracker().breakdown().total.count, 0U) << "call " << n << " failed";
        EXPECT_EQ(memory_.num_live, 0) << "call " << n << " failed";
      });
  EXPECT_EQ(num_calls, 3);  // memory_info, allocate, free
  EXPECT_EQ(created, 2);    // when free failed, and when nothing did
}

TEST_F(ArenaTest, LogsWhenItsMemoryCannotBeFreed) {
  const test::LogCapture log(LogLevel::error);
  test::FaultyDevice device(*device_);
  {
    const auto arena = Arena::create(device, small_layout(), {.size = {.num_blocks = 2}});
    ASSERT_OK(arena);
    device.fail_after(0);
  }
  EXPECT_TRUE(log.contains(LogLevel::error, "arena of 1536 bytes not freed"));
}

}  // namespace
}  // namespace kvarena
