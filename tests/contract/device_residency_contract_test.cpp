// What every Device must say of where memory lies.

#include "contract/device_contract.hpp"
#include "support/log_capture.hpp"

#include "kvarena/device/memory_drift.hpp"
#include "kvarena/device/residency.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace kvarena {
namespace {

class DeviceResidencyContract : public test::DeviceContract {
 protected:
  /// Where its own memory lies.
  MemoryPlace home() const {
    return device_->kind() == DeviceKind::cuda ? MemoryPlace::vram : MemoryPlace::host_device;
  }
  MemoryPlace place_of(const void* pointer, std::uint64_t bytes) const {
    const auto placement = device_->place_of(pointer, bytes);
    EXPECT_OK(placement);
    if (!placement) return MemoryPlace::mixed;
    EXPECT_FALSE(placement->driver_said.empty());
    said_ = placement->driver_said;
    decided_ = placement->pointer;
    return placement->place;
  }

  mutable std::string said_;
  mutable const void* decided_ = nullptr;
};

TEST_P(DeviceResidencyContract, HostsAllowHostsAndGpusDoNot) {
  EXPECT_EQ(device_->policy(), device_->kind() == DeviceKind::cuda ? ResidencyPolicy::vram_only
                                                                   : ResidencyPolicy::allow_host);
}

TEST_P(DeviceResidencyContract, ItsOwnMemoryIsAtHomeInAnyPart) {
  for (const std::uint64_t bytes : {1U, 777U, 4096U, 5U << 20}) {
    auto* memory = static_cast<char*>(allocate(bytes, MemoryPurpose::kv_cache));
    EXPECT_EQ(place_of(memory, bytes), home()) << bytes << ": " << said_;
    EXPECT_EQ(place_of(memory, 1), home()) << bytes << ": " << said_;
    EXPECT_EQ(place_of(memory + bytes - 1, 1), home()) << bytes << ": " << said_;
    EXPECT_EQ(place_of(memory + bytes / 3, bytes - bytes / 3), home()) << bytes << ": " << said_;
    EXPECT_OK(device_->free(memory));
  }
}

TEST_P(DeviceResidencyContract, EveryAlignmentIsVerified) {
  for (std::uint64_t alignment = 1; alignment <= 4096; alignment *= 4) {
    const auto memory = device_->allocate({.bytes = 3, .alignment_bytes = alignment});
    ASSERT_OK(memory);
    EXPECT_EQ(place_of(*memory, 3), home()) << alignment << ": " << said_;
    EXPECT_OK(device_->free(*memory));
  }
}

TEST_P(DeviceResidencyContract, StagingMemoryIsNotDeviceMemory) {
  const auto staging = device_->allocate({.bytes = 65536, .kind = MemoryKind::pinned_staging});
  ASSERT_OK(staging);
  EXPECT_EQ(place_of(*staging, 65536), device_->kind() == DeviceKind::cuda
                                           ? MemoryPlace::pinned_host
                                           : MemoryPlace::host_device)
      << said_;
  EXPECT_OK(device_->free(*staging));
}

TEST_P(DeviceResidencyContract, ForeignMemoryIsPageable) {
  const std::vector<char> heap(4096);
  const std::array<char, 64> stack{};
  EXPECT_EQ(place_of(heap.data(), heap.size()), MemoryPlace::pageable_host) << said_;
  EXPECT_EQ(place_of(stack.data(), stack.size()), MemoryPlace::pageable_host) << said_;
  EXPECT_EQ(place_of(reinterpret_cast<const void*>(std::uintptr_t{4096}), 1),
            MemoryPlace::pageable_host)
      << said_;
}

TEST_P(DeviceResidencyContract, FreedMemoryIsNobodys) {
  constexpr std::uint64_t kBytes = 16 << 20;
  void* memory = allocate(kBytes);
  ASSERT_OK(device_->free(memory));
  EXPECT_EQ(place_of(memory, kBytes), MemoryPlace::pageable_host) << said_;
}

TEST_P(DeviceResidencyContract, ARangePastItsEndIsMixed) {
  constexpr std::uint64_t kBytes = 4 << 20;
  auto* memory = static_cast<char*>(allocate(kBytes));
  EXPECT_EQ(place_of(memory, kBytes + (64 << 20)), MemoryPlace::mixed) << said_;
  EXPECT_GT(decided_, static_cast<void*>(memory));
  EXPECT_EQ(place_of(memory + kBytes - 1, 8 << 20), MemoryPlace::mixed) << said_;
  EXPECT_OK(device_->free(memory));
}

TEST_P(DeviceResidencyContract, RefusesRangesThatAreNone) {
  char byte = 0;
  EXPECT_FAILS(device_->place_of(nullptr, 1), invalid_argument, pointer);
  EXPECT_FAILS(device_->place_of(&byte, 0), invalid_argument, span_size);
  EXPECT_FAILS(device_->place_of(&byte, ~std::uint64_t{0}), invalid_argument, span_size);
}

TEST_P(DeviceResidencyContract, VerifiesWhatIsTracked) {
  std::vector<void*> held = {allocate(4096, MemoryPurpose::kv_cache),
                             allocate(1 << 20, MemoryPurpose::model_weights)};
  const auto staging = device_->allocate({.bytes = 4096, .kind = MemoryKind::pinned_staging});
  ASSERT_OK(staging);
  held.push_back(*staging);
  const ResidencyReport report = verify_residency(*device_);
  EXPECT_OK(report.status);
  EXPECT_EQ(report.checked, 3U);
  for (const ResidencyViolation& violation : report.violations)
    ADD_FAILURE() << describe(violation);
  EXPECT_EQ(report.resident, device_->kind() == DeviceKind::cuda);
  for (void* memory : held) EXPECT_OK(device_->free(memory));
}

TEST_P(DeviceResidencyContract, RegistrationJudgesNowOrLater) {
  const test::LogCapture log(LogLevel::error);
  std::vector<char> heap(4096);
  AllocationRecord record;
  record.pointer = heap.data();
  record.bytes = heap.size();
  record.purpose = MemoryPurpose::model_weights;
  record.description = "on the heap";
  EXPECT_FAILS(register_memory(*device_, record), residency_violated, allocation);
  EXPECT_TRUE(log.contains(LogLevel::error, "VRAM residency violated"));
  ASSERT_OK(register_memory(*device_, record, RegisterCheck::defer));
  const ResidencyReport report = verify_residency(*device_);
  ASSERT_EQ(report.violations.size(), 1U);
  EXPECT_EQ(report.violations[0].record.pointer, heap.data());
  EXPECT_FALSE(report.resident);
  EXPECT_FAILS(device_->free(heap.data()), failed_precondition, allocation);
  EXPECT_OK(unregister_memory(*device_, heap.data()));
}

TEST_P(DeviceResidencyContract, DriftSaysWhereTheUsedMemoryGoes) {
  constexpr std::uint64_t kBytes = 32 << 20;
  const auto before = measure_drift(*device_);
  ASSERT_OK(before);
  EXPECT_EQ(before->tracked_bytes, 0U);
  void* memory = allocate(kBytes);
  const auto during = measure_drift(*device_);
  ASSERT_OK(during);
  EXPECT_EQ(during->tracked_bytes, kBytes);
  EXPECT_EQ(during->overhead_bytes, device_->overhead_bytes());
  EXPECT_GE(during->driver_used_bytes, kBytes);
  EXPECT_EQ(static_cast<std::int64_t>(during->driver_used_bytes),
            static_cast<std::int64_t>(during->tracked_bytes + during->overhead_bytes) +
                during->growth_bytes);
  EXPECT_EQ(during->drift_bytes,
            static_cast<std::int64_t>(during->overhead_bytes) + during->growth_bytes);
  EXPECT_NE(to_string(*during).find("33554432 bytes"), std::string::npos) << to_string(*during);
  EXPECT_OK(device_->free(memory));
}

KVARENA_ON_EVERY_DEVICE(DeviceResidencyContract);

}  // namespace
}  // namespace kvarena
