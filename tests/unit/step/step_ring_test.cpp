// The ring of steps in flight: whose end a step waits for.

#include "support/faulty_device.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"
#include "step/step_ring.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace kvarena {
namespace {

struct StepRingTest : ::testing::Test {
  std::unique_ptr<HostDevice> device = HostDevice::create({.streams = HostStreams::manual}).value();
};

TEST_F(StepRingTest, StepsTakeTheSlotsInTurn) {
  const StepRing ring = StepRing::create(*device, 3).value();
  EXPECT_EQ(ring.size(), 3U);
  for (std::uint64_t step = 0; step < 9; ++step) EXPECT_EQ(ring.index_of(step), step % 3);
}

TEST_F(StepRingTest, WaitingMeansTheWorkBeforeTheMark) {
  StepRing ring = StepRing::create(*device, 2).value();
  const StreamId stream = *device->create_stream();
  int done = 0;
  const auto count = [](void* number) {
    ++*static_cast<int*>(number);
    return Status{};
  };
  EXPECT_OK(ring.wait(0)) << "never used";
  for (const std::size_t slot : {0U, 1U}) {
    ASSERT_OK(device->launch_host(count, &done, stream));
    ASSERT_OK(ring.mark(slot, stream));
  }
  EXPECT_OK(ring.wait(0));
  EXPECT_EQ(done, 1);
  EXPECT_OK(ring.wait(1));
  EXPECT_EQ(done, 2);
}

TEST_F(StepRingTest, AFailureOfAnyDeviceCallIsReturned) {
  bool created = false;
  const std::int64_t calls = test::fail_every_call(
      *device, [&](test::FaultyDevice& d) { created = StepRing::create(d, 3).is_ok(); },
      [](std::int64_t) {});
  EXPECT_TRUE(created);
  EXPECT_EQ(calls, 8) << "three events and the one of pass, made and destroyed";
}

}  // namespace
}  // namespace kvarena
