// What is particular to the host device: capacity, the machine behind it, explanations, limits.

#include "kvarena/device/host_device.hpp"

#include "support/fake_memory_source.hpp"
#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

namespace kvarena {
namespace {

class HostDeviceTest : public ::testing::Test {
 protected:
  void create(HostDeviceOptions options = {.capacity_bytes = 10000}) {
    options.memory = &memory_;
    auto created = HostDevice::create(options);
    ASSERT_OK(created);
    device_ = std::move(created).value();
  }
  void TearDown() override {
    device_.reset();
    EXPECT_EQ(memory_.num_live, 0);
    EXPECT_EQ(memory_.live_bytes, 0);
  }

  test::FakeMemorySource memory_;
  std::unique_ptr<HostDevice> device_;
};

TEST_F(HostDeviceTest, RefusesOptionsOutOfRange) {
  EXPECT_REFUSES(HostDevice::create({.streams = static_cast<HostStreams>(99)}), invalid_argument,
                 streams);
  EXPECT_REFUSES(HostDevice::create({.max_streams = 0}), invalid_argument, max_streams);
  EXPECT_REFUSES(HostDevice::create({.max_streams = 5000}), invalid_argument, max_streams);
  EXPECT_REFUSES(HostDevice::create({.max_queued = 0}), invalid_argument, max_queued);
  EXPECT_REFUSES(HostDevice::create({.max_queued = 1U << 21}), invalid_argument, max_queued);
  EXPECT_REFUSES(HostDevice::create({.capacity_bytes = std::uint64_t{1} << 60}), invalid_argument,
                 capacity_bytes);
}

TEST_F(HostDeviceTest, SaysWhatItIs) {
  create();
  EXPECT_EQ(device_->kind(), DeviceKind::host);
  EXPECT_EQ(device_->name(), "host");
}

TEST_F(HostDeviceTest, TakesTheMachinesMemoryAsCapacityByDefault) {
  memory_.available = 123456;
  create({});
  EXPECT_EQ(device_->memory_info()->total_bytes, 123456U);
  EXPECT_EQ(device_->memory_info()->free_bytes, 123456U);
}

TEST_F(HostDeviceTest, FreeIsTheSmallerOfCapacityLeftAndMachine) {
  create();
  EXPECT_EQ(device_->memory_info()->free_bytes, 10000U);
  memory_.available = 700;
  EXPECT_EQ(device_->memory_info()->free_bytes, 700U);
  EXPECT_FAILS(device_->allocate({.bytes = 701}), insufficient_vram, device_memory);
  const auto fits = device_->allocate({.bytes = 700});
  ASSERT_OK(fits);
  memory_.available = 1 << 20;
  EXPECT_EQ(device_->memory_info()->free_bytes, 9300U);
  EXPECT_OK(device_->free(*fits));
}

TEST_F(HostDeviceTest, CapacityIsExactToTheByte) {
  create();
  const auto all = device_->allocate({.bytes = 10000});
  ASSERT_OK(all);
  const auto refused = device_->allocate({.bytes = 1});
  EXPECT_EQ(refused.status(), insufficient_vram(1, 0));
  EXPECT_OK(device_->free(*all));
  EXPECT_EQ(device_->memory_info()->free_bytes, 10000U);
}

TEST_F(HostDeviceTest, StagingDoesNotCountAgainstTheCapacity) {
  create();
  const auto staging = device_->allocate({.bytes = 20000, .kind = MemoryKind::pinned_staging});
  ASSERT_OK(staging);
  EXPECT_EQ(device_->memory_info()->free_bytes, 10000U);
  EXPECT_OK(device_->free(*staging));
  EXPECT_EQ(device_->memory_info()->free_bytes, 10000U);
  memory_.available = 50;
  EXPECT_FAILS(device_->allocate({.bytes = 51, .kind = MemoryKind::pinned_staging}), exhausted,
               host_memory);
}

TEST_F(HostDeviceTest, CountsCallsFailedOnesIncluded) {
  create();
  const auto memory = device_->allocate({.bytes = 16});
  ASSERT_OK(memory);
  EXPECT_FALSE(device_->allocate({.bytes = 0}));
  EXPECT_OK(device_->free(*memory));
  EXPECT_FALSE(device_->free(*memory));
  EXPECT_EQ(device_->call_counts().allocate, 2U);
  EXPECT_EQ(device_->call_counts().free, 2U);
}

TEST_F(HostDeviceTest, ReleasesWhatWasLeakedAndNamesIt) {
  test::LogCapture log(LogLevel::warning);
  create();
  ASSERT_OK(device_->allocate({.bytes = 100, .description = "first lost"}));
  ASSERT_OK(device_->allocate({.bytes = 200, .description = "second lost"}));
  device_.reset();
  EXPECT_EQ(memory_.num_live, 0);
  EXPECT_TRUE(log.contains(LogLevel::warning, "300 bytes in 2 allocations"));
  EXPECT_TRUE(log.contains(LogLevel::warning, "first lost"));
  EXPECT_TRUE(log.contains(LogLevel::warning, "second lost"));
}

// ---- explanations -------------------------------------------------------------------------------

TEST_F(HostDeviceTest, ExplainsThatMemoryIsMissing) {
  create();
  const auto held = device_->allocate(
      {.bytes = 6000, .purpose = MemoryPurpose::model_weights, .description = "weights"});
  ASSERT_OK(held);
  test::LogCapture log(LogLevel::warning);
  const auto refused = device_->allocate(
      {.bytes = 5000, .purpose = MemoryPurpose::kv_cache, .description = "kv arena"});
  ASSERT_EQ(refused.status(), insufficient_vram(5000, 4000));
  ASSERT_OK(device_->free(*held));
  const std::string text = device_->describe(refused.status());
  for (const char* part :
       {"5000 bytes (4.88 KiB) for KVCache \"kv arena\"", "4000 bytes (3.91 KiB) free of 10000",
        "ModelWeights", "6000", "Missing: 1000 bytes", "Ask for at most 4000 bytes"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
  }
  EXPECT_EQ(text.find("sufficed"), std::string::npos) << text;
  EXPECT_TRUE(log.contains(LogLevel::warning, "Missing: 1000 bytes"));
}

TEST_F(HostDeviceTest, AFullDeviceIsNotAskedForLess) {
  create();
  const auto held = device_->allocate({.bytes = 10000, .description = "all"});
  ASSERT_OK(held);
  const auto refused = device_->allocate({.bytes = 1, .description = "one more"});
  const std::string text = device_->describe(refused.status());
  ASSERT_OK(device_->free(*held));
  EXPECT_NE(text.find("Missing: 1 bytes. Free some of the above first.\n"), std::string::npos)
      << text;
}

TEST_F(HostDeviceTest, SaysSoWhenFreeMemoryWouldHaveSufficed) {
  create();
  memory_.refuse_with = ENOMEM;
  const auto refused = device_->allocate({.bytes = 5000, .description = "kv arena"});
  EXPECT_FAILS(refused, insufficient_vram, device_memory);
  EXPECT_EQ(refused.status().native, ENOMEM);
  EXPECT_EQ(refused.status().available, 10000U);
  const std::string text = device_->describe(refused.status());
  EXPECT_NE(text.find("would have sufficed"), std::string::npos) << text;
  EXPECT_NE(text.find("fragmented, or another process"), std::string::npos) << text;
  EXPECT_EQ(text.find("Missing"), std::string::npos) << text;
  EXPECT_EQ(device_->memory_info()->free_bytes, 10000U);
  EXPECT_EQ(device_->tracker().breakdown().allocations_ever, 0U);
}

TEST_F(HostDeviceTest, ExplainsThatTheMachineLacksMemoryForStaging) {
  create();
  memory_.available = 3000;
  test::LogCapture log(LogLevel::warning);
  const auto refused = device_->allocate({.bytes = 5000,
                                          .purpose = MemoryPurpose::intermediate_buffers,
                                          .kind = MemoryKind::pinned_staging,
                                          .description = "ring"});
  ASSERT_EQ(refused.status(), exhausted(Resource::host_memory, 5000, 3000));
  const std::string text = device_->describe(refused.status());
  for (const char* part :
       {"5000 required, 3000 available", "for IntermediateBuffers \"ring\"",
        "machine: 3000 bytes (2.93 KiB) available", "in use at the failure", "ModelWeights",
        "Missing: 2000 bytes", "free some of the machine's memory"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
  }
  EXPECT_EQ(text.find("device:"), std::string::npos) << text;
  EXPECT_TRUE(log.contains(LogLevel::warning, "allocation refused: out of host memory"));
  // Another failure takes its place; the figures and what is in use stay to be had.
  EXPECT_FALSE(device_->allocate({.bytes = 20000}));
  const std::string later = device_->describe(refused.status());
  for (const char* part : {"5000 required, 3000 available", "in use now", "ModelWeights"}) {
    EXPECT_NE(later.find(part), std::string::npos) << part << " is missing in\n" << later;
  }
}

TEST_F(HostDeviceTest, NamesLimitsWhenTheMachineRefusesStagingItHas) {
  create();
  memory_.refuse_with = ENOMEM;
  const auto refused =
      device_->allocate({.bytes = 5000, .kind = MemoryKind::pinned_staging, .description = "ring"});
  EXPECT_FAILS(refused, exhausted, host_memory);
  const std::string text = device_->describe(refused.status());
  EXPECT_NE(text.find("control group"), std::string::npos) << text;
  EXPECT_NE(text.find("ulimit -l"), std::string::npos) << text;
  EXPECT_EQ(text.find("fragmented"), std::string::npos) << text;
}

TEST_F(HostDeviceTest, PassesOnOtherRefusalsOfTheSystem) {
  create();
  memory_.refuse_with = EPERM;
  const auto refused = device_->allocate({.bytes = 5000});
  EXPECT_FAILS(refused, device_error, device_memory);
  EXPECT_EQ(refused.status().native, EPERM);
  const std::string text = device_->describe(refused.status());
  EXPECT_NE(text.find("the driver's error 1"), std::string::npos) << text;
  EXPECT_EQ(text.find("sufficed"), std::string::npos) << "of memory there was enough; " << text;
  memory_.refuse_with = 0;
  const auto served = device_->allocate({.bytes = 10000});
  ASSERT_OK(served);
  EXPECT_OK(device_->free(*served));
}

TEST_F(HostDeviceTest, DescribesOtherStatusesPlainly) {
  create();
  EXPECT_FALSE(device_->allocate({.bytes = 20000}));
  const Status elsewhere = insufficient_vram(20000, 77);
  const std::string text = device_->describe(elsewhere);
  EXPECT_EQ(text.find(describe(elsewhere)), 0U) << text;
  EXPECT_NE(text.find("in use now"), std::string::npos) << text;
  EXPECT_EQ(text.find("requested"), std::string::npos) << text;
  const Status other = not_found(Resource::stream, 5);
  EXPECT_EQ(device_->describe(other), describe(other));
  EXPECT_EQ(device_->describe(Status{}), describe(Status{}));
}

// ---- streams ------------------------------------------------------------------------------------

TEST_F(HostDeviceTest, LimitsStreams) {
  create({.capacity_bytes = 10000, .max_streams = 2});
  const auto first = device_->create_stream();
  ASSERT_OK(first);
  ASSERT_OK(device_->create_stream());
  EXPECT_FAILS(device_->create_stream(), exhausted, stream);
  ASSERT_OK(device_->destroy_stream(*first));
  EXPECT_OK(device_->create_stream());
}

TEST_F(HostDeviceTest, QueueingBlocksWhileAStreamIsFull) {
  create({.capacity_bytes = 10000, .max_queued = 4});
  const StreamId s = device_->create_stream().value();
  std::atomic<bool> open{false};
  std::atomic<int> queued{0};
  ASSERT_OK(device_->launch_host(
      [](void* gate) {
        while (!*static_cast<std::atomic<bool>*>(gate)) std::this_thread::yield();
        return Status{};
      },
      &open, s));
  std::thread producer([&] {
    for (int i = 0; i < 20; ++i) {
      if (device_->fill(nullptr, 0, 0, s)) ++queued;
    }
  });
  while (queued < 3) std::this_thread::yield();
  EXPECT_EQ(queued, 3);  // the gate and three more fill the ring for as long as the gate is shut
  open = true;
  producer.join();
  EXPECT_EQ(queued, 20);
  EXPECT_OK(device_->synchronize(s));
}

TEST_F(HostDeviceTest, RunsStreamsSideBySide) {
  create();
  const StreamId first = device_->create_stream().value();
  const StreamId second = device_->create_stream().value();
  // Each function waits for the other: only with two threads does either return.
  std::atomic<int> arrived{0};
  const HostFunction meet = [](void* counter) {
    auto& arrivals = *static_cast<std::atomic<int>*>(counter);
    ++arrivals;
    while (arrivals < 2) std::this_thread::yield();
    return Status{};
  };
  ASSERT_OK(device_->launch_host(meet, &arrived, first));
  ASSERT_OK(device_->launch_host(meet, &arrived, second));
  EXPECT_OK(device_->synchronize(first));
  EXPECT_OK(device_->synchronize(second));
}

TEST_F(HostDeviceTest, RefusesToWaitInsideAHostFunction) {
  create();
  struct Call {
    HostDevice* device;
    StreamId stream;
    EventId event;
    Status synchronize, synchronize_event, launch, destroy;
  };
  Call call{device_.get(),
            device_->create_stream().value(),
            device_->create_event().value(),
            {},
            {},
            {},
            {}};
  ASSERT_OK(device_->record(call.event, call.stream));
  ASSERT_OK(device_->launch_host(
      [](void* argument) {
        auto& c = *static_cast<Call*>(argument);
        c.synchronize = c.device->synchronize(c.stream);
        c.synchronize_event = c.device->synchronize(c.event);
        c.launch = c.device->fill(nullptr, 0, 0, c.stream);
        c.destroy = c.device->destroy_stream(c.stream);
        return Status{};
      },
      &call, call.stream));
  EXPECT_OK(device_->synchronize(call.stream));
  for (const Status& status :
       {call.synchronize, call.synchronize_event, call.launch, call.destroy}) {
    EXPECT_FAILS(status, failed_precondition, stream);
  }
}

TEST_F(HostDeviceTest, RunOneNeedsManualStreams) {
  create();
  EXPECT_FAILS(device_->run_one(device_->create_stream().value()), failed_precondition, stream);
}

TEST_F(HostDeviceTest, LogsAFailureThatNobodyTook) {
  create();
  const StreamId s = device_->create_stream().value();
  ASSERT_OK(device_->launch_host([](void*) { return not_found(Resource::block, 31); }, nullptr, s));
  const test::LogCapture log(LogLevel::warning);
  device_.reset();
  EXPECT_TRUE(log.contains(LogLevel::warning, "block 31"));
}

}  // namespace
}  // namespace kvarena
