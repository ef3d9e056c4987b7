// What is particular to the CUDA device's memory, and to how it lives beside the caller's own CUDA.

#include "support/gpu.hpp"
#include "support/log_capture.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace kvarena {
namespace {

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_GPU();
    device_ = test::make_cuda();
    ASSERT_NE(device_, nullptr);
  }
  std::uint64_t free_bytes() { return device_->memory_info().value().free_bytes; }

  std::unique_ptr<CudaDevice> device_;
};

TEST_F(CudaDeviceTest, SaysWhatItIs) {
  EXPECT_EQ(device_->kind(), DeviceKind::cuda);
  EXPECT_EQ(device_->ordinal(), 0);
  EXPECT_EQ(device_->lost_to(), 0);
  const CudaDeviceInfo info = device_->info();
  ASSERT_OK(info.status);
  EXPECT_EQ(device_->name(), "cuda:0 " + info.name);
  EXPECT_GE(info.major, 8);
  EXPECT_GT(info.num_sms, 0);
  EXPECT_EQ(info.memory.total_bytes, device_->memory_info()->total_bytes);
}

TEST_F(CudaDeviceTest, RefusesOrdinalsThatAreNone) {
  EXPECT_REFUSES(CudaDevice::create({.ordinal = 1000}), invalid_argument, ordinal);
  EXPECT_REFUSES(CudaDevice::create({.ordinal = -1}), invalid_argument, ordinal);
}

// ---- memory -------------------------------------------------------------------------------------

TEST_F(CudaDeviceTest, MemoryIsWhatItIsRecordedAs) {
  const auto memory = device_->allocate({.bytes = 4096, .purpose = MemoryPurpose::kv_cache});
  const auto staging = device_->allocate({.bytes = 4096, .kind = MemoryKind::pinned_staging});
  ASSERT_OK(memory);
  ASSERT_OK(staging);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, *memory), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, *staging), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_OK(device_->free(*memory));
  EXPECT_OK(device_->free(*staging));
}

TEST_F(CudaDeviceTest, ThousandLargeBuffersComeBackExactly) {
  constexpr std::uint64_t kBytes = std::uint64_t{256} << 20;
  const std::uint64_t before = free_bytes();
  std::int64_t resident = 0;
  for (int i = 0; i < 1000; ++i) {
    if (i == 10) resident = test::resident_bytes();
    const auto memory = device_->allocate({.bytes = kBytes, .description = "stress"});
    ASSERT_OK(memory) << "buffer " << i;
    ASSERT_EQ(device_->tracker().breakdown().total.bytes, kBytes);
    ASSERT_OK(device_->free(*memory));
  }
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, 0U);
  EXPECT_EQ(device_->tracker().breakdown().frees_ever, 1000U);
  EXPECT_LE(test::resident_bytes() - resident, std::int64_t{8} << 20);
}

TEST_F(CudaDeviceTest, FillsTheCardExplainsAndReturnsEveryByte) {
  constexpr std::uint64_t kBytes = std::uint64_t{4} << 30;
  const std::uint64_t before = free_bytes();
  std::vector<void*> held;
  Status refusal;
  while (refusal.is_ok() && held.size() < 1000) {
    const auto memory = device_->allocate({.bytes = kBytes, .purpose = MemoryPurpose::kv_cache});
    refusal = memory.status();
    if (memory) held.push_back(*memory);
  }
  EXPECT_FAILS(refusal, insufficient_vram, device_memory);
  EXPECT_EQ(refusal.native, cudaErrorMemoryAllocation);
  EXPECT_LT(refusal.available, kBytes);
  EXPECT_EQ(device_->tracker().breakdown().total.bytes, held.size() * kBytes);
  EXPECT_NE(device_->describe(refusal).find("Missing"), std::string::npos);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // not left for the caller's next check
  for (void* memory : held) EXPECT_OK(device_->free(memory));
  EXPECT_EQ(free_bytes(), before);
  const auto again = device_->allocate({.bytes = kBytes});
  ASSERT_OK(again);
  EXPECT_OK(device_->free(*again));
}

TEST_F(CudaDeviceTest, ReportsAreConsistentWhileOthersAllocate) {
  std::atomic<int> running{4};
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (std::uint8_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, purpose = static_cast<MemoryPurpose>(t)] {
      for (int i = 0; i < 250; ++i) {
        const auto memory = device_->allocate({.bytes = 65536, .purpose = purpose});
        if (!memory || !device_->free(*memory)) ++failures;
      }
      --running;
    });
  }
  while (running > 0) {
    const MemoryBreakdown now = device_->tracker().breakdown();
    std::uint64_t sum = 0;
    for (const MemoryUsage& usage : now.by_purpose) sum += usage.bytes;
    EXPECT_EQ(sum, now.total.bytes);
    EXPECT_EQ(now.allocations_ever - now.frees_ever, now.total.count);
    EXPECT_OK(device_->memory_info());
    EXPECT_FALSE(device_->tracker().report().empty());
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(device_->tracker().breakdown().frees_ever, 1000U);
}

TEST_F(CudaDeviceTest, TwoObjectsShareOneGpu) {
  const auto second = test::make_cuda();
  ASSERT_NE(second, nullptr);
  const auto memory = device_->allocate({.bytes = 4096});
  ASSERT_OK(memory);
  EXPECT_FAILS(second->free(*memory), not_found, allocation);
  EXPECT_OK(device_->free(*memory));
}

// ---- beside the caller's own CUDA ---------------------------------------------------------------

TEST_F(CudaDeviceTest, LeavesTheCallersLastErrorAlone) {
  const StreamId stream = device_->create_stream().value();
  const EventId event = device_->create_event().value();
  std::atomic<bool> open{false};
  ASSERT_OK(device_->launch_host(
      [](void* gate) {
        while (!*static_cast<std::atomic<bool>*>(gate)) std::this_thread::yield();
        return Status{};
      },
      &open, stream));
  ASSERT_OK(device_->record(event, stream));
  EXPECT_FALSE(device_->is_complete(event).value());  // CUDA answers cudaErrorNotReady
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_NE(cudaSetDevice(9999), cudaSuccess);
  EXPECT_FALSE(device_->is_complete(event).value());
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  open = true;
  EXPECT_OK(device_->synchronize(stream));
}

// Not for compute-sanitizer, which makes every launch wait for the whole device, so for the gate.
TEST_F(CudaDeviceTest, WorksWhileTheDefaultStreamIsBlocked) {
  const StreamId stream = device_->create_stream().value();
  const EventId event = device_->create_event().value();
  const auto memory = device_->allocate({.bytes = 1 << 20});
  ASSERT_OK(memory);
  std::atomic<bool> open{false};
  // Kernels of the legacy stream and of blocking streams would now wait for these.
  const cudaHostFn_t gate = [](void* flag) {
    while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
  };
  ASSERT_EQ(cudaLaunchHostFunc(cudaStreamLegacy, gate, &open), cudaSuccess);
  EXPECT_OK(device_->fill(*memory, 7, 1 << 20, stream));
  EXPECT_OK(device_->copy(*memory, static_cast<char*>(*memory) + (1 << 19), 1 << 19, stream));
  EXPECT_OK(device_->record(event, stream));
  EXPECT_OK(device_->synchronize(event));
  EXPECT_OK(device_->synchronize(stream));
  EXPECT_EQ(cudaStreamQuery(cudaStreamLegacy), cudaErrorNotReady);
  open = true;
  EXPECT_EQ(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);
  static_cast<void>(cudaGetLastError());
  EXPECT_OK(device_->free(*memory));
}

TEST_F(CudaDeviceTest, AnyThreadMayCallWhateverItsCurrentDevice) {
  // A new thread has no context; it must have none afterwards, and its device must be the same.
  std::thread([this] {
    const auto memory = device_->allocate({.bytes = 4096});
    ASSERT_OK(memory);
    EXPECT_OK(device_->free(*memory));
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, 0);
  }).join();
}

TEST(CudaDevicesTest, TwoGpusSideBySide) {
  KVARENA_NEEDS_GPUS(2);
  const auto first = test::make_cuda({.ordinal = 0});
  const auto second = test::make_cuda({.ordinal = 1});
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  for (const int mine : {0, 1}) {
    ASSERT_EQ(cudaSetDevice(mine), cudaSuccess);
    for (CudaDevice* device : {first.get(), second.get()}) {
      const auto memory = device->allocate({.bytes = 1 << 20});
      const StreamId stream = device->create_stream().value();
      ASSERT_OK(memory);
      EXPECT_OK(device->fill(*memory, 3, 1 << 20, stream));
      unsigned char last = 0;
      EXPECT_OK(device->copy(&last, static_cast<char*>(*memory) + (1 << 20) - 1, 1, stream));
      EXPECT_OK(device->synchronize(stream));
      EXPECT_EQ(last, 3);
      cudaPointerAttributes attributes{};
      ASSERT_EQ(cudaPointerGetAttributes(&attributes, *memory), cudaSuccess);
      EXPECT_EQ(attributes.device, device->ordinal());
      EXPECT_OK(device->free(*memory));
      EXPECT_OK(device->destroy_stream(stream));
      int current = -1;
      EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
      EXPECT_EQ(current, mine);
    }
  }
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_FAILS(first->adopt_stream(other), unsupported, device);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);  // as the tests that follow expect
}

}  // namespace
}  // namespace kvarena
