// Memory that must be refused on a GPU: managed, pinned, mapped, registered, pageable, another
// GPU's, freed, and past its end; memory of a pool must not. Tiny allocations only.

#include "support/gpu.hpp"
#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/memory_drift.hpp"
#include "kvarena/device/residency.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace kvarena {
namespace {

constexpr std::uint64_t kBytes = 1 << 20;

class CudaResidency : public ::testing::Test {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_GPU();
    device_ = test::make_cuda();
    ASSERT_NE(device_, nullptr);
  }
  void TearDown() override {
    if (device_ == nullptr) return;  // skipped
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }

  static AllocationRecord record_of(void* pointer, std::uint64_t bytes) {
    AllocationRecord record;
    record.pointer = pointer;
    record.bytes = bytes;
    record.purpose = MemoryPurpose::model_weights;
    record.description = "engine's weights";
    return record;
  }
  /// The driver says `place`; verify refuses it and records nothing, defer records it and the next
  /// verdict finds it.
  void expect_refused(void* pointer, std::uint64_t bytes, MemoryPlace place) {
    const auto placement = device_->place_of(pointer, bytes);
    ASSERT_OK(placement);
    EXPECT_EQ(placement->place, place)
        << name_of(placement->place) << ": " << placement->driver_said;
    const Status refused = register_memory(*device_, record_of(pointer, bytes));
    EXPECT_FAILS(refused, residency_violated, allocation);
    EXPECT_EQ(device_->tracker().breakdown().total.count, 0U);
    ASSERT_OK(register_memory(*device_, record_of(pointer, bytes), RegisterCheck::defer));
    const ResidencyReport report = verify_residency(*device_);
    ASSERT_OK(report.status);
    EXPECT_FALSE(report.resident);
    ASSERT_EQ(report.violations.size(), 1U);
    EXPECT_EQ(report.violations[0].placement.place, place);
    const std::string text = describe(report.violations[0]);
    EXPECT_NE(text.find("VRAM residency violated"), std::string::npos) << text;
    EXPECT_NE(text.find(name_of(place)), std::string::npos) << text;
    EXPECT_FAILS(device_->free(pointer), failed_precondition, allocation);
    EXPECT_OK(unregister_memory(*device_, pointer));
    EXPECT_TRUE(verify_residency(*device_).resident);
  }

  std::unique_ptr<CudaDevice> device_;
};

TEST_F(CudaResidency, ManagedMemory) {
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocManaged(&managed, kBytes, cudaMemAttachGlobal), cudaSuccess);
  expect_refused(managed, kBytes, MemoryPlace::managed);
  // Managed memory that happens to lie on the GPU is managed all the same.
  EXPECT_EQ(cudaMemset(managed, 1, kBytes), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  expect_refused(managed, kBytes, MemoryPlace::managed);
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
}

TEST_F(CudaResidency, PinnedAndMappedHostMemory) {
  for (const int flags : {cudaHostAllocDefault, cudaHostAllocMapped, cudaHostAllocPortable,
                          cudaHostAllocWriteCombined}) {
    void* pinned = nullptr;
    ASSERT_EQ(cudaHostAlloc(&pinned, kBytes, static_cast<unsigned int>(flags)), cudaSuccess);
    expect_refused(pinned, kBytes, MemoryPlace::pinned_host);
    void* mapped = nullptr;
    if (cudaHostGetDevicePointer(&mapped, pinned, 0) == cudaSuccess) {
      expect_refused(mapped, kBytes, MemoryPlace::pinned_host);
    }
    static_cast<void>(cudaGetLastError());
    EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  }
}

TEST_F(CudaResidency, RegisteredHostMemory) {
  void* heap = std::aligned_alloc(4096, kBytes);
  ASSERT_NE(heap, nullptr);
  expect_refused(heap, kBytes, MemoryPlace::pageable_host);
  ASSERT_EQ(cudaHostRegister(heap, kBytes, cudaHostRegisterMapped), cudaSuccess);
  expect_refused(heap, kBytes, MemoryPlace::pinned_host);
  AllocationRecord staging = record_of(heap, kBytes);
  staging.kind = MemoryKind::pinned_staging;
  EXPECT_FAILS(register_memory(*device_, staging), unsupported, allocation) << "weights";
  staging.purpose = MemoryPurpose::intermediate_buffers;
  EXPECT_OK(register_memory(*device_, staging));  // which is what staging memory is
  EXPECT_EQ(device_->tracker().breakdown().staging.bytes, kBytes);
  EXPECT_TRUE(verify_residency(*device_).resident);
  EXPECT_OK(unregister_memory(*device_, heap));
  ASSERT_EQ(cudaHostUnregister(heap), cudaSuccess);
  expect_refused(heap, kBytes, MemoryPlace::pageable_host);
  std::free(heap);
}

TEST_F(CudaResidency, FreedMemory) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 16 * kBytes), cudaSuccess);
  ASSERT_OK(register_memory(*device_, record_of(memory, 16 * kBytes)));
  EXPECT_TRUE(verify_residency(*device_).resident);
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  const ResidencyReport report = verify_residency(*device_);
  ASSERT_EQ(report.violations.size(), 1U);
  EXPECT_OK(unregister_memory(*device_, memory));
  expect_refused(memory, 16 * kBytes, MemoryPlace::pageable_host);
}

TEST_F(CudaResidency, RangesPastTheirEnd) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
  expect_refused(memory, 64 * kBytes, MemoryPlace::mixed);
  ASSERT_OK(register_memory(*device_, record_of(memory, kBytes)));
  EXPECT_OK(unregister_memory(*device_, memory));
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(CudaResidency, AnEnginesDeviceMemoryIsItsOwn) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
  ASSERT_OK(register_memory(*device_, record_of(memory, kBytes)));
  EXPECT_EQ(device_->tracker().breakdown().engine_bytes, kBytes);
  EXPECT_FAILS(device_->free(memory), failed_precondition, allocation);
  device_.reset();
  // The device is gone, the memory is not.
  EXPECT_EQ(cudaMemset(memory, 1, kBytes), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(CudaResidency, PooledMemoryIsVram) {
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMallocAsync(&memory, kBytes, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const auto placement = device_->place_of(memory, kBytes);
  ASSERT_OK(placement);
  EXPECT_EQ(placement->place, MemoryPlace::vram) << placement->driver_said;
  EXPECT_EQ(cudaFreeAsync(memory, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CudaResidency, AllowHostTakesItAndIsNeverResident) {
  const test::LogCapture log(LogLevel::warning);
  device_ = test::make_cuda({.policy = ResidencyPolicy::allow_host});
  ASSERT_NE(device_, nullptr);
  EXPECT_TRUE(log.contains(LogLevel::warning, "allow_host"));
  EXPECT_EQ(device_->policy(), ResidencyPolicy::allow_host);
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocManaged(&managed, kBytes, cudaMemAttachGlobal), cudaSuccess);
  EXPECT_OK(register_memory(*device_, record_of(managed, kBytes)));
  const ResidencyReport report = verify_residency(*device_);
  EXPECT_TRUE(report.violations.empty());
  EXPECT_FALSE(report.resident);
  EXPECT_OK(unregister_memory(*device_, managed));
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
}

TEST_F(CudaResidency, AsksFromAnyThreadsDeviceAndLeavesTheCallersError) {
  void* memory = device_->allocate({.bytes = kBytes}).value();
  ASSERT_NE(cudaSetDevice(9999), cudaSuccess);
  EXPECT_TRUE(verify_residency(*device_).resident);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_OK(device_->free(memory));
}

TEST_F(CudaResidency, DriftIsExactAndNvmlAgrees) {
  const MemoryDrift before = measure_drift(*device_).value();
  void* memory = device_->allocate({.bytes = 512 * kBytes}).value();
  const MemoryDrift during = measure_drift(*device_).value();
  EXPECT_EQ(during.tracked_bytes, 512 * kBytes);
  EXPECT_EQ(during.drift_bytes, before.drift_bytes) << to_string(during);
  std::cout << to_string(during);
  const auto nvml = nvml_memory(*device_);
  if (nvml) {
    const auto used = static_cast<std::int64_t>(nvml->used_bytes + nvml->reserved_bytes);
    const auto driver = static_cast<std::int64_t>(during.driver_used_bytes);
    std::cout << "NVML " << nvml->driver_version << ": used " << nvml->used_bytes << ", reserved "
              << nvml->reserved_bytes << ", total " << nvml->total_bytes << "; this is process "
              << ::getpid() << '\n';
    for (const GpuProcess& process : nvml->processes) {
      std::cout << "  process " << process.pid << " \"" << process.name << "\" "
                << (process.bytes ? std::to_string(*process.bytes) : "not told") << '\n';
    }
    EXPECT_GE(nvml->total_bytes, device_->info().memory.total_bytes);
    EXPECT_GE(nvml->used_bytes, 512 * kBytes);
    EXPECT_LT(std::abs(used - driver), std::int64_t{2} << 30);
  } else {
    std::cout << "NVML: " << kvarena::describe(nvml.status()) << '\n';
  }
  EXPECT_OK(device_->free(memory));
}

TEST_F(CudaResidency, SaysHowTheGpuIsBuiltIn) {
  const CudaDeviceInfo info = device_->info();
  cudaDeviceProp properties{};
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_EQ(info.is_integrated, properties.integrated != 0);
  char bus_id[32] = {};
  ASSERT_EQ(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, 0), cudaSuccess);
  EXPECT_STRCASEEQ(info.pci_bus_id.c_str(), bus_id);
}

TEST(CudaResidencyOfTwo, AnotherGpusMemoryIsRefused) {
  KVARENA_NEEDS_GPUS(2);
  const auto first = test::make_cuda({.ordinal = 0});
  const auto second = test::make_cuda({.ordinal = 1});
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  void* memory = second->allocate({.bytes = kBytes}).value();
  const auto placement = first->place_of(memory, kBytes);
  ASSERT_OK(placement);
  EXPECT_EQ(placement->place, MemoryPlace::other_device) << placement->driver_said;
  EXPECT_EQ(placement->ordinal, 1);
  AllocationRecord record;
  record.pointer = memory;
  record.bytes = kBytes;
  EXPECT_FAILS(register_memory(*first, record), residency_violated, allocation);
  EXPECT_OK(register_memory(*first, record, RegisterCheck::defer));
  EXPECT_EQ(verify_residency(*first).violations.size(), 1U);
  EXPECT_OK(unregister_memory(*first, memory));
  EXPECT_TRUE(verify_residency(*second).resident);
  EXPECT_OK(second->free(memory));
}

}  // namespace
}  // namespace kvarena
