// What the host device takes from the operating system is what its tracker recorded, call by call.

#include "support/fake_memory_source.hpp"
#include "unit/cache/memory_game.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

namespace kvarena {
namespace {

TEST(HostCalls, SeenEqualRecorded) {
  test::FakeMemorySource memory;
  {
    const auto device =
        HostDevice::create({.capacity_bytes = std::uint64_t{1} << 32, .memory = &memory});
    ASSERT_OK(device);
    test::play_memory_game(**device, 10, [&] {
      const MemoryBreakdown recorded = (*device)->tracker().breakdown();
      EXPECT_EQ(memory.num_given, recorded.allocations_ever);
      EXPECT_EQ(memory.num_taken_back, recorded.frees_ever);
      EXPECT_EQ(memory.num_live,
                static_cast<std::int64_t>(recorded.total.count + recorded.staging.count));
      EXPECT_EQ(memory.live_bytes,
                static_cast<std::int64_t>(recorded.total.bytes + recorded.staging.bytes));
    });
    EXPECT_GT(memory.num_given, 40U);
    EXPECT_EQ(memory.num_live, 0);
  }
  EXPECT_EQ(memory.num_given, memory.num_taken_back);
}

}  // namespace
}  // namespace kvarena
