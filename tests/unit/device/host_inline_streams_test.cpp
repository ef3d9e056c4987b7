// Streams whose work runs in the calls that queue it.

#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace kvarena {
namespace {

constexpr Status kFailure{
    StatusCode::verification_failed, Resource::block, Option::none, 0, 7, 1, 2};

Status fail(void*) { return kFailure; }
Status count(void* number) {
  ++*static_cast<int*>(number);
  return {};
}
Status note_thread(void* id) {
  *static_cast<std::thread::id*>(id) = std::this_thread::get_id();
  return {};
}

std::ptrdiff_t num_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

struct InlineStreams : ::testing::Test {
  std::unique_ptr<HostDevice> device =
      HostDevice::create({.capacity_bytes = 1 << 20, .streams = HostStreams::inline_calls}).value();
  StreamId stream = device->create_stream().value();
};

TEST_F(InlineStreams, WorkRunsInTheCallOnTheCallersThread) {
  const std::ptrdiff_t threads = num_threads();
  const StreamId more[] = {device->create_stream().value(), device->create_stream().value()};
  EXPECT_EQ(num_threads(), threads) << "a stream has no thread";
  std::thread::id ran_on;
  ASSERT_OK(device->launch_host(note_thread, &ran_on, more[1]));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  char bytes[4] = {};
  ASSERT_OK(device->fill(bytes, 5, 2, stream));
  EXPECT_EQ(bytes[1], 5);
  ASSERT_OK(device->copy(bytes + 2, bytes, 2, more[0]));
  EXPECT_EQ(bytes[3], 5);
  EXPECT_FAILS(device->run_one(stream), failed_precondition, stream);
}

TEST_F(InlineStreams, AFailureIsTheStreamsAndNotTheCalls) {
  const StreamId other = device->create_stream().value();
  const EventId event = device->create_event().value();
  int ran = 0;
  ASSERT_OK(device->launch_host(fail, nullptr, stream)) << "as on a stream with a thread";
  ASSERT_OK(device->launch_host(count, &ran, stream));
  ASSERT_OK(device->record(event, stream));
  EXPECT_EQ(device->is_complete(event).status(), kFailure);
  EXPECT_EQ(ran, 0);
  ASSERT_OK(device->wait(other, event));
  ASSERT_OK(device->launch_host(count, &ran, other));
  EXPECT_EQ(device->synchronize(other), kFailure);
  EXPECT_EQ(device->synchronize(stream), kFailure);
  EXPECT_EQ(ran, 0);
  EXPECT_OK(device->synchronize(stream)) << "once";
  ASSERT_OK(device->launch_host(count, &ran, stream));
  EXPECT_EQ(ran, 1);
}

TEST_F(InlineStreams, NoStreamIsEverFull) {
  const auto small =
      HostDevice::create(
          {.capacity_bytes = 1 << 20, .streams = HostStreams::inline_calls, .max_queued = 1})
          .value();
  const StreamId one = small->create_stream().value();
  int ran = 0;
  for (int i = 0; i < 10; ++i) ASSERT_OK(small->launch_host(count, &ran, one));
  EXPECT_EQ(ran, 10);
}

/// A host function that calls its device, which it must not.
struct Caller {
  Device* device;
  StreamId stream;
  int ran = 0;
  std::vector<Status> refused = {};

  static Status run(void* self) {
    auto& c = *static_cast<Caller*>(self);
    c.refused = {c.device->launch_host(count, &c.ran, c.stream), c.device->synchronize(c.stream)};
    return {};
  }
};

TEST_F(InlineStreams, CallsFromInsideAHostFunctionAreRefused) {
  Caller caller{device.get(), device->create_stream().value()};
  ASSERT_OK(device->launch_host(Caller::run, &caller, stream));
  ASSERT_EQ(caller.refused.size(), 2U);
  for (const Status& status : caller.refused) EXPECT_FAILS(status, failed_precondition, stream);
  EXPECT_EQ(caller.ran, 0);
  EXPECT_OK(device->launch_host(count, &caller.ran, caller.stream)) << "afterwards it works";
  EXPECT_EQ(caller.ran, 1);
}

/// A host function that runs until it is told to end.
struct Long {
  std::atomic<bool> has_begun = false;
  std::atomic<bool> may_end = false;
  bool has_ended = false;

  static Status run(void* self) {
    auto& l = *static_cast<Long*>(self);
    l.has_begun = true;
    while (!l.may_end) std::this_thread::yield();
    l.has_ended = true;
    return {};
  }
};

TEST_F(InlineStreams, OtherThreadsUseOtherStreamsMeanwhileAndCanWait) {
  Long work;
  std::thread busy([&] { EXPECT_OK(device->launch_host(Long::run, &work, stream)); });
  while (!work.has_begun) std::this_thread::yield();
  const StreamId other = device->create_stream().value();
  int ran = 0;
  ASSERT_OK(device->launch_host(count, &ran, other));
  EXPECT_OK(device->synchronize(other));
  EXPECT_EQ(ran, 1);
  const EventId behind = device->create_event().value();
  ASSERT_OK(device->record(behind, stream));
  EXPECT_FALSE(device->is_complete(behind).value()) << "the work is under way";
  std::thread opens([&] { work.may_end = true; });
  ASSERT_OK(device->wait(other, behind));
  EXPECT_TRUE(work.has_ended) << "the wait ran in the call";
  EXPECT_OK(device->synchronize(stream));
  opens.join();
  busy.join();
}

}  // namespace
}  // namespace kvarena
