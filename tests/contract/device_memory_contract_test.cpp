// What every Device must do with memory.

#include "contract/device_contract.hpp"
#include "support/log_capture.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace kvarena {
namespace {

class DeviceMemoryContract : public test::DeviceContract {};

TEST_P(DeviceMemoryContract, FreeMemoryFollowsAllocations) {
  const auto before = device_->memory_info();
  ASSERT_OK(before);
  EXPECT_GT(before->total_bytes, 0U);
  EXPECT_LE(before->free_bytes, before->total_bytes);
  void* memory = allocate(8 << 20);
  const auto during = device_->memory_info();
  ASSERT_OK(during);
  EXPECT_LE(during->free_bytes + (8 << 20), before->free_bytes);
  ASSERT_OK(device_->free(memory));
  const auto after = device_->memory_info();
  ASSERT_OK(after);
  EXPECT_GE(after->free_bytes, during->free_bytes + (8 << 20));
}

TEST_P(DeviceMemoryContract, HonoursEveryAlignment) {
  for (std::uint64_t alignment = 1; alignment <= 4096; alignment *= 2) {
    const auto memory = device_->allocate({.bytes = 3, .alignment_bytes = alignment});
    ASSERT_OK(memory);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*memory) % alignment, 0U) << alignment;
    EXPECT_OK(device_->free(*memory));
  }
}

TEST_P(DeviceMemoryContract, RefusesNonsenseRequests) {
  EXPECT_REFUSES(device_->allocate({.bytes = 0}), invalid_argument, bytes);
  EXPECT_REFUSES(device_->allocate({.bytes = 16, .purpose = static_cast<MemoryPurpose>(99)}),
                 invalid_argument, purpose);
  EXPECT_REFUSES(device_->allocate({.bytes = 16, .kind = static_cast<MemoryKind>(99)}),
                 invalid_argument, kind);
  EXPECT_REFUSES(device_->allocate({.bytes = ~std::uint64_t{0}}), invalid_argument, bytes);
  for (const std::uint64_t alignment : {0U, 3U, 8192U}) {
    EXPECT_REFUSES(device_->allocate({.bytes = 16, .alignment_bytes = alignment}), invalid_argument,
                   alignment_bytes);
  }
  for (const auto kept : {MemoryPurpose::kv_cache, MemoryPurpose::model_weights}) {
    EXPECT_FAILS(
        device_->allocate({.bytes = 16, .purpose = kept, .kind = MemoryKind::pinned_staging}),
        unsupported, allocation);
  }
  EXPECT_EQ(device_->tracker().breakdown().allocations_ever, 0U);
}

TEST_P(DeviceMemoryContract, RefusesToFreeWhatIsNotAllocated) {
  int local = 0;
  void* memory = allocate(64);
  EXPECT_FAILS(device_->free(nullptr), invalid_argument, pointer);
  EXPECT_FAILS(device_->free(&local), not_found, allocation);
  EXPECT_FAILS(device_->free(static_cast<char*>(memory) + 8), not_found, allocation);
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, 64U);
  EXPECT_OK(device_->free(memory));
  EXPECT_FAILS(device_->free(memory), not_found, allocation);
}

TEST_P(DeviceMemoryContract, TracksEveryAllocationWithItsPurpose) {
  void* weights = allocate(1000, MemoryPurpose::model_weights);
  void* cache = allocate(3000, MemoryPurpose::kv_cache);
  const auto staging = device_->allocate({.bytes = 500, .kind = MemoryKind::pinned_staging});
  ASSERT_OK(staging);
  MemoryBreakdown now = device_->tracker().breakdown();
  EXPECT_EQ(now.total.bytes, 4000U);
  EXPECT_EQ(now.total.count, 2U);
  EXPECT_EQ(now.staging.bytes, 500U);
  EXPECT_EQ(now.by_purpose[static_cast<std::size_t>(MemoryPurpose::kv_cache)].bytes, 3000U);
  const auto found = device_->tracker().find(static_cast<char*>(cache) + 2999);
  ASSERT_OK(found);
  EXPECT_EQ(found->pointer, cache);
  EXPECT_EQ(found->description, "contract");
  for (void* memory : {weights, cache, *staging}) EXPECT_OK(device_->free(memory));
  now = device_->tracker().breakdown();
  EXPECT_EQ(now.total.bytes + now.staging.bytes, 0U);
  EXPECT_EQ(now.total.peak_bytes, 4000U);
  EXPECT_EQ(now.frees_ever, 3U);
}

TEST_P(DeviceMemoryContract, ExplainsExhaustionAndRecovers) {
  void* cache = allocate(1 << 20, MemoryPurpose::kv_cache);
  const auto memory = device_->memory_info();
  ASSERT_OK(memory);
  const std::uint64_t wanted = memory->total_bytes + 1;
  const auto refused = device_->allocate(
      {.bytes = wanted, .purpose = MemoryPurpose::model_weights, .description = "too much"});
  EXPECT_FAILS(refused, insufficient_vram, device_memory);
  EXPECT_EQ(refused.status().required, wanted);
  EXPECT_LT(refused.status().available, wanted);
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, std::uint64_t{1} << 20);

  // The explanation is that of the failure's instant, whatever has happened since.
  ASSERT_OK(device_->free(cache));
  const std::string text = device_->describe(refused.status());
  EXPECT_NE(text.find("ModelWeights \"too much\""), std::string::npos) << text;
  EXPECT_NE(text.find("1048576"), std::string::npos) << text;
  EXPECT_NE(text.find("Missing"), std::string::npos) << text;
  void* again = allocate(1 << 20);
  EXPECT_OK(device_->free(again));
}

TEST_P(DeviceMemoryContract, AllocatesFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        const auto memory = device_->allocate({.bytes = 4096, .description = "thread"});
        if (!memory || !device_->free(*memory)) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(device_->tracker().breakdown().allocations_ever, kThreads * kRounds + 0U);
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, 0U);
}

TEST_P(DeviceMemoryContract, WarnsOfLeaksByName) {
  test::LogCapture log(LogLevel::warning);
  ASSERT_OK(device_->allocate({.bytes = 777, .description = "forgotten buffer"}));
  device_.reset();
  EXPECT_TRUE(log.contains(LogLevel::warning, "forgotten buffer"));
}

TEST_P(DeviceMemoryContract, SaysNothingWhenNothingLeaks) {
  test::LogCapture log(LogLevel::warning);
  EXPECT_OK(device_->free(allocate(777)));
  stream();
  event();
  device_.reset();
  EXPECT_TRUE(log.lines().empty());
}

KVARENA_ON_EVERY_DEVICE(DeviceMemoryContract);

}  // namespace
}  // namespace kvarena
