// What an engine does in every step takes nothing from the heap.

#include "support/heap_counter.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>

namespace kvarena {
namespace {

TEST(SteadyState, TheCounterCounts) {
  const test::HeapCounter heap;
  const auto one = std::make_unique<int>(1);
  *const_cast<volatile int*>(one.get()) = 2;  // or the compiler does without the allocation
  EXPECT_GE(heap.count(), 1);
}

TEST(SteadyState, QueueingCopyingAndEventsAllocateNothing) {
  for (const HostStreams mode :
       {HostStreams::threads, HostStreams::manual, HostStreams::inline_calls}) {
    const auto device = HostDevice::create({.capacity_bytes = 1 << 20, .streams = mode});
    ASSERT_OK(device);
    Device& d = **device;
    const StreamId upload = d.create_stream().value();
    const StreamId compute = d.create_stream().value();
    const EventId uploaded = d.create_event().value();
    std::array<char, 64> source{};
    std::array<char, 64> target{};
    bool all_ok = true;
    const test::HeapCounter heap;
    for (int i = 0; i < 1000; ++i) {
      all_ok &= d.fill(source.data(), 1, source.size(), upload).is_ok();
      all_ok &= d.record(uploaded, upload).is_ok();
      all_ok &= d.wait(compute, uploaded).is_ok();
      all_ok &= d.copy(target.data(), source.data(), source.size(), compute).is_ok();
      all_ok &= d.launch_host([](void*) { return Status{}; }, nullptr, compute).is_ok();
      all_ok &= d.is_complete(uploaded).is_ok();
      all_ok &= d.synchronize(compute).is_ok();
    }
    const std::int64_t allocations = heap.count();
    EXPECT_TRUE(all_ok);
    EXPECT_EQ(allocations, 0);
    EXPECT_EQ(target.back(), 1);
  }
}

}  // namespace
}  // namespace kvarena
