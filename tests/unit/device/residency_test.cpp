// Residency on a machine without a GPU: what is permitted, what the driver's answers mean, and the
// verdict over what is tracked, on the host device and on one that lies.

#include "kvarena/device/residency.hpp"

#include "device/driver_answer.hpp"
#include "device/forwarding_device.hpp"
#include "support/fake_memory_source.hpp"
#include "support/faulty_device.hpp"
#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

constexpr auto kVramOnly = ResidencyPolicy::vram_only;
constexpr auto kAllowHost = ResidencyPolicy::allow_host;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- what is permitted --------------------------------------------------------------------------

TEST(Residency, PermitsOnlyWhatThePolicySays) {
  struct Row {
    MemoryPlace place;
    bool vram_device, vram_staging, host_device, host_staging;
  };
  constexpr std::array kRows = {
      Row{MemoryPlace::vram, true, false, true, false},
      Row{MemoryPlace::other_device, false, false, false, false},
      Row{MemoryPlace::integrated, false, false, true, false},
      Row{MemoryPlace::managed, false, false, true, false},
      Row{MemoryPlace::pinned_host, false, true, true, true},
      Row{MemoryPlace::pageable_host, false, false, false, false},
      Row{MemoryPlace::host_device, false, false, true, true},
      Row{MemoryPlace::mixed, false, false, false, false},
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(name_of(row.place));
    EXPECT_EQ(is_permitted(row.place, MemoryKind::device, kVramOnly), row.vram_device);
    EXPECT_EQ(is_permitted(row.place, MemoryKind::pinned_staging, kVramOnly), row.vram_staging);
    EXPECT_EQ(is_permitted(row.place, MemoryKind::device, kAllowHost), row.host_device);
    EXPECT_EQ(is_permitted(row.place, MemoryKind::pinned_staging, kAllowHost), row.host_staging);
  }
}

// ---- what the driver's answers mean -------------------------------------------------------------

/// What a driver says of cudaMalloc's memory on GPU `ordinal`.
DriverAnswer device_memory(std::int32_t ordinal) {
  DriverAnswer answer;
  answer.type = RuntimeMemory::device;
  answer.device = ordinal;
  answer.device_pointer = reinterpret_cast<const void*>(0x7000);
  answer.memory = DriverMemory::device;
  answer.ordinal = ordinal;
  answer.range_first = 0x7000;
  answer.range_bytes = 0x1000;
  return answer;
}

TEST(DriverAnswer, DeviceMemoryIsVramOfItsOwnGpuOnly) {
  EXPECT_EQ(place_of(device_memory(1), 1, false), MemoryPlace::vram);
  EXPECT_EQ(place_of(device_memory(0), 1, false), MemoryPlace::other_device);
  EXPECT_EQ(place_of(device_memory(1), 1, true), MemoryPlace::integrated);
  DriverAnswer disputed = device_memory(1);
  disputed.ordinal = 0;  // the runtime says 1
  EXPECT_EQ(place_of(disputed, 1, false), MemoryPlace::other_device);
}

TEST(DriverAnswer, EverySignOfManagedMemoryCounts) {
  for (int sign = 0; sign < 3; ++sign) {
    DriverAnswer answer = device_memory(0);
    if (sign == 0) answer.type = RuntimeMemory::managed;
    if (sign == 1) answer.is_managed = true;
    if (sign == 2) answer.memory = DriverMemory::unified;
    EXPECT_EQ(place_of(answer, 0, false), MemoryPlace::managed) << sign;
  }
}

TEST(DriverAnswer, HostMemoryIsPinnedHoweverItIsMapped) {
  DriverAnswer runtime_says = device_memory(0);
  runtime_says.type = RuntimeMemory::host;
  EXPECT_EQ(place_of(runtime_says, 0, false), MemoryPlace::pinned_host);
  DriverAnswer driver_says = device_memory(0);
  driver_says.memory = DriverMemory::host;
  EXPECT_EQ(place_of(driver_says, 0, false), MemoryPlace::pinned_host);
  DriverAnswer reachable = device_memory(0);
  reachable.host_pointer = reachable.device_pointer;
  EXPECT_EQ(place_of(reachable, 0, false), MemoryPlace::pinned_host);
}

TEST(DriverAnswer, WhatNobodyKnowsIsPageable) {
  EXPECT_EQ(place_of(DriverAnswer{}, 0, false), MemoryPlace::pageable_host);
  DriverAnswer unmapped = device_memory(0);
  unmapped.memory = DriverMemory::none;  // reserved addresses with nothing behind them
  EXPECT_EQ(place_of(unmapped, 0, false), MemoryPlace::pageable_host);
  EXPECT_EQ(owner_of(DriverAnswer{}), -1);
  EXPECT_EQ(owner_of(device_memory(3)), 3);
}

TEST(DriverAnswer, RangesCountFromTheAddressAskedAbout) {
  EXPECT_EQ(bytes_from(device_memory(0), 0x7000), 0x1000U);
  EXPECT_EQ(bytes_from(device_memory(0), 0x7FFF), 1U);
  EXPECT_EQ(bytes_from(device_memory(0), 0x8000), 0U);
  EXPECT_EQ(bytes_from(device_memory(0), 0x6FFF), 0U);
  EXPECT_EQ(bytes_from(DriverAnswer{}, 0x7000), 0U);
}

TEST(DriverAnswer, TextHasEveryAttribute) {
  const std::string text = to_string(device_memory(2));
  for (const char* part : {"cudaMemoryTypeDevice", "device 2", "devicePointer 0x7000",
                           "hostPointer", "MEMORY_TYPE device", "IS_MANAGED 0", "DEVICE_ORDINAL 2",
                           "RANGE 0x7000 + 4096", "MAPPED 0", "ALLOWED_HANDLE_TYPES"}) {
    EXPECT_TRUE(contains(text, part)) << part << " is missing in " << text;
  }
}

// ---- the verdict --------------------------------------------------------------------------------

class ResidencyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = HostDevice::create({.capacity_bytes = 1 << 20, .memory = &memory_});
    ASSERT_OK(created);
    device_ = std::move(created).value();
  }
  void* allocate(std::uint64_t bytes, MemoryPurpose purpose = MemoryPurpose::kv_cache) {
    return device_->allocate({.bytes = bytes, .purpose = purpose, .description = "planted buffer"})
        .value();
  }
  AllocationRecord foreign(MemoryPurpose purpose = MemoryPurpose::model_weights) {
    AllocationRecord record;
    record.pointer = foreign_.data();
    record.bytes = foreign_.size();
    record.purpose = purpose;
    record.description = "engine's tensor";
    return record;
  }

  test::FakeMemorySource memory_;
  std::unique_ptr<HostDevice> device_;
  std::array<char, 512> foreign_{};
};

TEST_F(ResidencyTest, AHostDeviceIsNeverResidentThoughNothingIsWrong) {
  void* memory = allocate(4096);
  const ResidencyReport report = verify_residency(*device_);
  EXPECT_OK(report.status);
  EXPECT_EQ(report.policy, kAllowHost);
  EXPECT_FALSE(report.resident);
  EXPECT_EQ(report.checked, 1U);
  EXPECT_TRUE(report.violations.empty());
  EXPECT_OK(device_->free(memory));
}

TEST_F(ResidencyTest, ADeviceThatKeepsItsPromiseIsResident) {
  test::FaultyDevice device(*device_);
  device.claim(kVramOnly);
  void* memory = allocate(64);
  EXPECT_FALSE(verify_residency(device).resident);
  device.claim(MemoryPlace::vram);
  EXPECT_TRUE(verify_residency(device).resident);
  device.claim(kAllowHost);
  EXPECT_FALSE(verify_residency(device).resident);
  EXPECT_OK(device_->free(memory));
}

TEST_F(ResidencyTest, EveryForbiddenPlaceIsAViolationThatNamesTheAllocation) {
  test::FaultyDevice device(*device_);
  device.claim(kVramOnly);
  void* memory = allocate(64);
  void* other = allocate(32, MemoryPurpose::intermediate_buffers);
  for (const MemoryPlace place :
       {MemoryPlace::other_device, MemoryPlace::integrated, MemoryPlace::managed,
        MemoryPlace::pinned_host, MemoryPlace::pageable_host, MemoryPlace::mixed}) {
    device.claim(place);
    const ResidencyReport report = verify_residency(device);
    EXPECT_FALSE(report.resident);
    ASSERT_EQ(report.violations.size(), 2U);
    EXPECT_EQ(report.checked, 2U);
    const auto first = report.violations[0].record.pointer == memory ? 0U : 1U;
    EXPECT_EQ(report.violations[1 - first].record.pointer, other);
    const std::string text = describe(report.violations[first]);
    for (const std::string& part : {std::string("VRAM residency violated"), std::string("KVCache"),
                                    std::string("64 bytes"), std::string("planted buffer"),
                                    std::string("a planted lie"), std::string(name_of(place))}) {
      EXPECT_TRUE(contains(text, part)) << part << " is missing in " << text;
    }
  }
  EXPECT_OK(device_->free(memory));
  EXPECT_OK(device_->free(other));
}

TEST_F(ResidencyTest, ADriverThatCannotTellIsNoGoodNews) {
  void* memory = allocate(64);
  test::FaultyDevice device(*device_, 0);
  device.claim(kVramOnly);
  device.claim(MemoryPlace::vram);
  const ResidencyReport report = verify_residency(device);
  EXPECT_FAILS(report.status, device_error, none);
  EXPECT_FALSE(report.resident);
  EXPECT_OK(device_->free(memory));
}

/// Frees an allocation while it is asked about, and may give its address to another at once.
class Vanishing final : public ForwardingDevice {
 public:
  Vanishing(Device& inner, void* victim, bool reuse)
      : ForwardingDevice(inner), records_(inner.tracker()), victim_(victim), reuse_(reuse) {}
  ResidencyPolicy policy() const noexcept override { return kVramOnly; }
  Result<Placement> place_of(const void* pointer, std::uint64_t) const override {
    if (pointer != victim_) return Placement{MemoryPlace::vram, 0, pointer, "in place"};
    const Result<AllocationRecord> gone = records_.erase(victim_);
    if (gone && reuse_) static_cast<void>(records_.record(*gone));
    return Placement{MemoryPlace::pageable_host, -1, pointer, "asked too late"};
  }

 private:
  VramTracker& records_;
  void* victim_;
  bool reuse_;
};

TEST_F(ResidencyTest, AnAllocationFreedMeanwhileIsNoViolation) {
  for (const bool reuse : {false, true}) {
    auto created = HostDevice::create({.capacity_bytes = 1 << 20});
    ASSERT_OK(created);
    Device& inner = **created;
    int victim = 0;
    int bystander = 0;
    for (int* pointer : {&victim, &bystander}) {
      AllocationRecord record;
      record.pointer = pointer;
      record.bytes = sizeof *pointer;
      ASSERT_OK(inner.tracker().record(record));
    }
    const ResidencyReport report = verify_residency(Vanishing(inner, &victim, reuse));
    EXPECT_TRUE(report.violations.empty()) << "reuse " << reuse;
    EXPECT_EQ(report.checked, 2U);
    static_cast<void>(inner.tracker().erase(&victim));
    static_cast<void>(inner.tracker().erase(&bystander));
  }
}

// ---- what an engine registers -------------------------------------------------------------------

TEST_F(ResidencyTest, VerifyRefusesForeignMemoryAndDeferRecordsIt) {
  const test::LogCapture log(LogLevel::error);
  const Status refused = register_memory(*device_, foreign());
  EXPECT_FAILS(refused, residency_violated, allocation);
  EXPECT_EQ(refused.subject, reinterpret_cast<std::uintptr_t>(foreign_.data()));
  EXPECT_TRUE(contains(describe(refused), "VRAM residency violated"));
  EXPECT_TRUE(log.contains(LogLevel::error, "engine's tensor"));
  EXPECT_EQ(device_->tracker().breakdown().allocations_ever, 0U);

  ASSERT_OK(register_memory(*device_, foreign(), RegisterCheck::defer));
  const MemoryBreakdown now = device_->tracker().breakdown();
  EXPECT_EQ(now.engine_bytes, foreign_.size());
  EXPECT_EQ(now.by_purpose[static_cast<std::size_t>(MemoryPurpose::model_weights)].bytes,
            foreign_.size());
  const ResidencyReport report = verify_residency(*device_);
  ASSERT_EQ(report.violations.size(), 1U);
  EXPECT_EQ(report.violations[0].placement.place, MemoryPlace::pageable_host);
  EXPECT_EQ(report.violations[0].record.owner, AllocationOwner::engine);

  EXPECT_OK(unregister_memory(*device_, foreign_.data()));
  EXPECT_TRUE(verify_residency(*device_).violations.empty());
  EXPECT_EQ(device_->tracker().breakdown().engine_bytes, 0U);
  EXPECT_FAILS(unregister_memory(*device_, foreign_.data()), not_found, allocation);
}

TEST_F(ResidencyTest, OwnerAndSerialAreNotTheEnginesToChoose) {
  AllocationRecord record = foreign();
  record.owner = AllocationOwner::device;
  record.serial = 77;
  ASSERT_OK(register_memory(*device_, record, RegisterCheck::defer));
  const auto found = device_->tracker().find(foreign_.data());
  ASSERT_OK(found);
  EXPECT_EQ(found->owner, AllocationOwner::engine);
  EXPECT_EQ(found->serial, 1U);
  EXPECT_TRUE(contains(device_->tracker().report(), "the engine's"));
}

TEST_F(ResidencyTest, NobodyFreesTheOthersMemory) {
  void* own = allocate(64);
  ASSERT_OK(register_memory(*device_, foreign(), RegisterCheck::defer));
  EXPECT_FAILS(device_->free(foreign_.data()), failed_precondition, allocation);
  EXPECT_FAILS(unregister_memory(*device_, own), failed_precondition, allocation);
  EXPECT_EQ(device_->tracker().breakdown().total.count, 2U);
  EXPECT_OK(device_->free(own));
  // The device goes and the engine's memory stays: it is on this stack, freeing it would crash.
  const test::LogCapture log(LogLevel::warning);
  device_.reset();
  EXPECT_EQ(memory_.num_live, 0);
  EXPECT_FALSE(log.contains(LogLevel::warning, "not freed"));
}

TEST_F(ResidencyTest, RegistrationRefusesWhatNoRecordMayBe) {
  AllocationRecord staging = foreign(MemoryPurpose::kv_cache);
  staging.kind = MemoryKind::pinned_staging;
  EXPECT_FAILS(register_memory(*device_, staging, RegisterCheck::defer), unsupported, allocation);
  AllocationRecord record = foreign();
  record.pointer = nullptr;
  EXPECT_FAILS(register_memory(*device_, record), invalid_argument, pointer);
  record = foreign();
  record.bytes = 0;
  EXPECT_REFUSES(register_memory(*device_, record), invalid_argument, bytes);
  EXPECT_FAILS(register_memory(*device_, foreign(), static_cast<RegisterCheck>(99)),
               invalid_argument, memory_check);
  ASSERT_OK(register_memory(*device_, foreign(), RegisterCheck::defer));
  EXPECT_FAILS(register_memory(*device_, foreign(), RegisterCheck::defer), failed_precondition,
               allocation);
  test::FaultyDevice mute(*device_, 0);
  record = foreign();
  EXPECT_FAILS(register_memory(mute, record), device_error, none);
}

TEST_F(ResidencyTest, TotalsAreCountedAsUnverifiable) {
  ASSERT_OK(device_->tracker().set_total("torch", MemoryPurpose::intermediate_buffers, 5000));
  const ResidencyReport report = verify_residency(*device_);
  EXPECT_EQ(report.unverifiable_bytes, 5000U);
  EXPECT_EQ(report.checked, 0U);
}

// ---- beside other threads -----------------------------------------------------------------------

TEST_F(ResidencyTest, VerdictsHoldWhileOthersAllocateAndRegister) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 300;
  std::atomic<int> failures{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const auto memory = device_->allocate({.bytes = 4096, .description = "churn"});
        if (!memory || !device_->free(*memory)) ++failures;
        const std::string name = "allocator " + std::to_string(t);
        const auto bytes = static_cast<std::uint64_t>(i % 3) * 100;
        if (!device_->tracker().set_total(name, MemoryPurpose::unknown, bytes)) ++failures;
      }
      const std::string name = "allocator " + std::to_string(t);
      if (!device_->tracker().set_total(name, MemoryPurpose::unknown, 0)) ++failures;
    });
  }
  std::thread verifier([&] {
    while (!done) {
      const ResidencyReport report = verify_residency(*device_);
      if (!report.status || !report.violations.empty() || report.checked > kThreads) ++failures;
      if (device_->tracker().report().empty()) ++failures;
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  verifier.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, 0U);
  EXPECT_EQ(device_->tracker().breakdown().reported_bytes, 0U);
}

}  // namespace
}  // namespace kvarena
