// Work that failed is over; a wait that failed is not a wait.

#include "support/faulty_device.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"
#include "step/event_wait.hpp"

#include <gtest/gtest.h>

namespace kvarena {
namespace {

Status succeed(void*) { return {}; }
Status fail(void*) { return {StatusCode::io_error, Resource::file, Option::none, 5, 0, 0, 0}; }

class EventWait : public ::testing::Test {
 protected:
  void queue(HostFunction function) {
    ASSERT_OK(host->launch_host(function, nullptr, stream));
    ASSERT_OK(host->record(event, stream));
  }

  std::unique_ptr<HostDevice> host = HostDevice::create({.streams = HostStreams::manual}).value();
  test::FaultyDevice device{*host};
  StreamId stream = *host->create_stream();
  EventId event = *host->create_event();
};

TEST_F(EventWait, AnEventNeverRecordedIsOver) {
  EXPECT_OK(wait_until_over(device, event));
  EXPECT_TRUE(is_over(device, event).value());
}

TEST_F(EventWait, WorkIsOverWhenItHasRunAndNotBefore) {
  queue(succeed);
  EXPECT_FALSE(is_over(device, event).value());
  EXPECT_OK(wait_until_over(device, event));
  EXPECT_TRUE(is_over(device, event).value());
}

TEST_F(EventWait, FailedWorkIsOverAndItsFailureStaysForSynchronize) {
  queue(fail);
  EXPECT_FALSE(is_over(device, event).value());
  EXPECT_OK(wait_until_over(device, event));
  EXPECT_TRUE(is_over(device, event).value());
  EXPECT_FAILS(host->synchronize(stream), io_error, file);
  EXPECT_OK(wait_until_over(device, event));
}

TEST_F(EventWait, ACallThatFailsIsNoWait) {
  queue(succeed);
  device.fail_after(0);
  EXPECT_FAILS(wait_until_over(device, event), device_error, none);
  device.fail_after(0);
  EXPECT_FALSE(is_over(device, event).value()) << "asked again";
  EXPECT_OK(wait_until_over(device, event));
  device.fail_after(0);
  EXPECT_OK(wait_until_over(device, event)) << "it was over without the wait";
}

}  // namespace
}  // namespace kvarena
