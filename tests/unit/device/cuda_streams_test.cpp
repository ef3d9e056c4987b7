// What is particular to the CUDA device's streams: native handles, adoption, capture, bounce
// buffers, rings of host functions.

#include "support/gpu.hpp"
#include "support/heap_counter.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace kvarena {
namespace {

Status wait_until_open(void* gate) {
  while (!*static_cast<std::atomic<bool>*>(gate)) std::this_thread::yield();
  return {};
}
Status count(void* counter) {
  ++*static_cast<int*>(counter);
  return {};
}

class CudaStreamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_GPU();
    create({});
  }
  void create(const CudaDeviceOptions& options) {
    device_ = test::make_cuda(options);
    ASSERT_NE(device_, nullptr);
    stream_ = device_->create_stream().value();
  }
  void* allocate(std::uint64_t bytes, MemoryKind kind = MemoryKind::device) {
    return device_->allocate({.bytes = bytes, .kind = kind}).value();
  }
  cudaStream_t native() {
    return static_cast<cudaStream_t>(device_->native_stream(stream_).value());
  }

  std::unique_ptr<CudaDevice> device_;
  StreamId stream_;
};

TEST_F(CudaStreamsTest, PageableCopiesOfAnySizePassThroughTheBounceBuffer) {
  create({.bounce_bytes = 4096});
  for (const std::size_t bytes : {1U, 4095U, 4096U, 4097U, 100003U}) {
    std::vector<std::uint8_t> source(bytes);
    std::iota(source.begin(), source.end(), static_cast<std::uint8_t>(bytes));
    std::vector<std::uint8_t> seen(bytes, 0);
    void* memory = allocate(bytes);
    EXPECT_OK(device_->copy(memory, source.data(), bytes, stream_));
    EXPECT_OK(device_->copy(seen.data(), memory, bytes, stream_));
    EXPECT_OK(device_->synchronize(stream_));
    EXPECT_EQ(seen, source);
    EXPECT_OK(device_->free(memory));
  }
}

TEST_F(CudaStreamsTest, PinnedAndHostCopiesKeepTheOrder) {
  auto* pinned = static_cast<std::uint8_t*>(allocate(256, MemoryKind::pinned_staging));
  void* memory = allocate(256);
  std::uint8_t seen[256] = {};
  EXPECT_OK(device_->fill(pinned, 9, 256, stream_));
  EXPECT_OK(device_->copy(memory, pinned, 256, stream_));
  EXPECT_OK(device_->fill(pinned, 1, 256, stream_));
  EXPECT_OK(device_->copy(pinned + 128, memory, 128, stream_));
  EXPECT_OK(device_->copy(seen, pinned, 256, stream_));
  EXPECT_OK(device_->fill(seen, 4, 8, stream_));
  EXPECT_OK(device_->synchronize(stream_));
  EXPECT_EQ(seen[7], 4);
  EXPECT_EQ(seen[8], 1);
  EXPECT_EQ(seen[128], 9);
  EXPECT_OK(device_->free(pinned));
  EXPECT_OK(device_->free(memory));
}

TEST_F(CudaStreamsTest, QueueingBlocksWhileTheRingOfHostFunctionsIsFull) {
  create({.max_host_functions = 4});
  std::atomic<bool> open{false};
  std::atomic<int> queued{0};
  int ran = 0;
  ASSERT_OK(device_->launch_host(wait_until_open, &open, stream_));
  std::thread producer([&] {
    for (int i = 0; i < 20; ++i) {
      if (device_->launch_host(count, &ran, stream_)) ++queued;
    }
  });
  while (queued < 3) std::this_thread::yield();
  EXPECT_EQ(queued, 3);  // the gate and three more fill the ring for as long as the gate is shut
  open = true;
  producer.join();
  EXPECT_EQ(queued, 20);
  EXPECT_OK(device_->synchronize(stream_));
  EXPECT_EQ(ran, 20);
}

TEST_F(CudaStreamsTest, RefusesToBeCalledFromAHostFunction) {
  struct Call {
    CudaDevice* device;
    StreamId stream;
    EventId event;
    void* memory;
    std::vector<Status> seen;
  };
  Call call{device_.get(), stream_, device_->create_event().value(), allocate(64), {}};
  ASSERT_OK(device_->launch_host(
      [](void* argument) {
        auto& c = *static_cast<Call*>(argument);
        c.seen = {c.device->synchronize(c.stream),
                  c.device->synchronize(c.event),
                  c.device->destroy_stream(c.stream),
                  c.device->destroy_event(c.event),
                  c.device->free(c.memory),
                  c.device->fill(c.memory, 0, 64, c.stream),
                  c.device->write_value(c.memory, 0, c.stream),
                  c.device->allocate({.bytes = 64}).status(),
                  c.device->create_stream().status(),
                  c.device->memory_info().status()};
        return Status{};
      },
      &call, stream_));
  EXPECT_OK(device_->synchronize(stream_));
  EXPECT_EQ(call.seen.size(), 10U);
  for (const Status& status : call.seen) EXPECT_FAILS(status, failed_precondition, stream);
  EXPECT_OK(device_->free(call.memory));
}

TEST_F(CudaStreamsTest, LimitsStreams) {
  create({.max_streams = 2});
  const auto second = device_->create_stream();
  ASSERT_OK(second);
  EXPECT_FAILS(device_->create_stream(), exhausted, stream);
  const std::uint64_t staging = device_->tracker().breakdown().staging.bytes;
  EXPECT_EQ(staging, 2 * CudaDeviceOptions{}.bounce_bytes);  // a refused stream leaves nothing
  ASSERT_OK(device_->destroy_stream(*second));
  EXPECT_OK(device_->create_stream());
}

// ---- the caller's own CUDA ----------------------------------------------------------------------

TEST_F(CudaStreamsTest, NativeWorkIsInTheStreamsOrder) {
  void* memory = allocate(64);
  std::uint8_t seen[64] = {};
  const EventId event = device_->create_event().value();
  EXPECT_OK(device_->fill(memory, 1, 64, stream_));
  EXPECT_OK(device_->check(cudaMemsetAsync(memory, 2, 32, native()), Resource::stream));
  EXPECT_OK(device_->record(event, stream_));
  EXPECT_OK(device_->copy(seen, memory, 64, stream_));
  EXPECT_OK(device_->synchronize(stream_));
  EXPECT_EQ(seen[31], 2);
  EXPECT_EQ(seen[32], 1);
  const auto native_event = device_->native_event(event);
  ASSERT_OK(native_event);
  EXPECT_EQ(cudaEventQuery(static_cast<cudaEvent_t>(*native_event)), cudaSuccess);
  EXPECT_FAILS(device_->native_stream(StreamId{0}), not_found, stream);
  EXPECT_FAILS(device_->native_event(EventId{0}), not_found, event);
  EXPECT_OK(device_->free(memory));
}

TEST_F(CudaStreamsTest, NumbersAreWrittenInTheStreamsOrder) {
  auto* const memory = static_cast<std::uint64_t*>(allocate(4 * sizeof(std::uint64_t)));
  std::vector<std::uint64_t> seen(300);
  EXPECT_OK(device_->fill(memory, 0xff, 4 * sizeof(std::uint64_t), stream_));
  const auto number = [](std::size_t i) { return (i + 1) * 0x0123456789abcdefULL; };
  auto* const pinned = static_cast<std::uint64_t*>(
      allocate(seen.size() * sizeof(std::uint64_t), MemoryKind::pinned_staging));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    ASSERT_OK(device_->write_value(memory + 1, number(i), stream_));
    ASSERT_OK(device_->copy(pinned + i, memory + 1, sizeof(std::uint64_t), stream_));
  }
  ASSERT_OK(device_->synchronize(stream_));
  for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(pinned[i], number(i)) << i;
  EXPECT_OK(device_->copy(seen.data(), memory, 4 * sizeof(std::uint64_t), stream_));
  EXPECT_OK(device_->synchronize(stream_));
  EXPECT_EQ(seen[0], ~0ULL);
  EXPECT_EQ(seen[2], ~0ULL) << "nothing beside it is written";

  EXPECT_FAILS(device_->write_value(nullptr, 1, stream_), invalid_argument, pointer);
  EXPECT_FAILS(
      device_->write_value(static_cast<void*>(reinterpret_cast<char*>(memory) + 4), 1, stream_),
      invalid_argument, alignment);
  EXPECT_FAILS(device_->write_value(memory, 1, StreamId{0}), not_found, stream);
  ASSERT_EQ(cudaStreamBeginCapture(native(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_FAILS(device_->write_value(memory, 1, stream_), failed_precondition, stream);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(native(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_OK(device_->free(pinned));
  EXPECT_OK(device_->free(memory));
}

TEST_F(CudaStreamsTest, ChecksNativeOutcomes) {
  EXPECT_OK(device_->check(cudaSuccess, Resource::stream));
  const Status status = device_->check(cudaErrorInvalidConfiguration, Resource::workspace);
  EXPECT_FAILS(status, device_error, workspace);
  EXPECT_EQ(status.native, cudaErrorInvalidConfiguration);
  EXPECT_NE(device_->describe(status).find("cudaErrorInvalidConfiguration"), std::string::npos);
  EXPECT_EQ(device_->lost_to(), 0);
}

TEST_F(CudaStreamsTest, AdoptsTheCallersStreamsAndLeavesThemAlive) {
  cudaStream_t mine = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking), cudaSuccess);
  const auto adopted = device_->adopt_stream(mine);
  ASSERT_OK(adopted);
  int ran = 0;
  EXPECT_OK(device_->launch_host(count, &ran, *adopted));
  EXPECT_EQ(device_->native_stream(*adopted).value(), mine);
  EXPECT_OK(device_->destroy_stream(*adopted));
  EXPECT_EQ(ran, 1);
  EXPECT_FAILS(device_->synchronize(*adopted), not_found, stream);
  EXPECT_EQ(cudaStreamSynchronize(mine), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(mine), cudaSuccess);
}

TEST_F(CudaStreamsTest, AnAdoptedStreamHasOneIdUntilItsLastAdoptionIsUndone) {
  cudaStream_t mine = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking), cudaSuccess);
  const std::uint64_t staging = device_->tracker().breakdown().staging.bytes;
  const StreamId adopted = device_->adopt_stream(mine).value();
  const std::uint64_t with_one = device_->tracker().breakdown().staging.bytes;
  EXPECT_GT(with_one, staging);
  EXPECT_EQ(device_->adopt_stream(mine).value(), adopted);
  EXPECT_EQ(device_->tracker().breakdown().staging.bytes, with_one);
  EXPECT_OK(device_->destroy_stream(adopted));
  EXPECT_EQ(device_->native_stream(adopted).value(), mine) << "one adoption is left";
  EXPECT_OK(device_->destroy_stream(adopted));
  EXPECT_FAILS(device_->native_stream(adopted), not_found, stream);
  EXPECT_FAILS(device_->destroy_stream(adopted), not_found, stream);
  EXPECT_EQ(device_->tracker().breakdown().staging.bytes, staging);
  const StreamId again = device_->adopt_stream(mine).value();
  EXPECT_NE(again, adopted) << "ids are never reused";
  EXPECT_EQ(device_->adopt_stream(mine).value(), again);
  device_.reset();  // forgets a stream however often it was adopted
  EXPECT_EQ(cudaStreamDestroy(mine), cudaSuccess);
}

TEST_F(CudaStreamsTest, AStreamThatIsBeingCapturedIsAdopted) {
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    cudaStream_t mine = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(mine, mode), cudaSuccess);
    const auto adopted = device_->adopt_stream(mine);
    ASSERT_OK(adopted);
    EXPECT_TRUE(device_->is_captured(*adopted).value());
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(mine, &graph), cudaSuccess) << "the capture goes on";
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    int ran = 0;
    EXPECT_OK(device_->launch_host(count, &ran, *adopted));
    EXPECT_OK(device_->destroy_stream(*adopted));
    EXPECT_EQ(ran, 1);
    EXPECT_EQ(cudaStreamDestroy(mine), cudaSuccess);
  }
}

TEST_F(CudaStreamsTest, TheDefaultStreamsAreAdopted) {
  const StreamId legacy = device_->adopt_stream(nullptr).value();
  EXPECT_EQ(device_->adopt_stream(cudaStreamLegacy).value(), legacy);
  const StreamId per_thread = device_->adopt_stream(cudaStreamPerThread).value();
  EXPECT_NE(per_thread, legacy);
  EXPECT_EQ(device_->native_stream(legacy).value(), cudaStreamLegacy);
  EXPECT_EQ(device_->native_stream(per_thread).value(), cudaStreamPerThread);
  auto* pinned = static_cast<std::uint8_t*>(allocate(64, MemoryKind::pinned_staging));
  void* memory = allocate(64);
  const EventId event = device_->create_event().value();
  for (const StreamId stream : {legacy, per_thread}) {
    std::memset(pinned, 0, 64);
    std::atomic<bool> gate = false;
    // stream_ waits for the default stream, whose work waits for the gate.
    ASSERT_OK(device_->launch_host(wait_until_open, &gate, stream));
    ASSERT_OK(device_->fill(memory, 7, 64, stream));
    ASSERT_OK(device_->record(event, stream));
    ASSERT_OK(device_->wait(stream_, event));
    ASSERT_OK(device_->copy(pinned, memory, 64, stream_));
    EXPECT_FALSE(device_->is_complete(event).value());
    gate = true;
    EXPECT_OK(device_->synchronize(stream_));
    EXPECT_EQ(pinned[63], 7);
    EXPECT_OK(device_->synchronize(stream));
    ASSERT_OK(device_->write_value(memory, 0x0908, stream));
    ASSERT_OK(device_->copy(pinned, memory, 8, stream));
    EXPECT_OK(device_->synchronize(stream));
    EXPECT_EQ(pinned[0], 8);
    EXPECT_OK(device_->fill(memory, 0, 64, stream));
    EXPECT_OK(device_->synchronize(stream));
  }
  EXPECT_OK(device_->free(pinned));
  EXPECT_OK(device_->free(memory));
  EXPECT_OK(device_->destroy_event(event));
  EXPECT_OK(device_->destroy_stream(legacy));
  EXPECT_OK(device_->native_stream(legacy)) << "it was adopted twice";
  EXPECT_OK(device_->destroy_stream(legacy));
  EXPECT_OK(device_->destroy_stream(per_thread));
  EXPECT_FAILS(device_->native_stream(legacy), not_found, stream);
}

TEST_F(CudaStreamsTest, ThePerThreadStreamIsThatOfTheThreadThatAdoptedIt) {
  const StreamId mine = device_->adopt_stream(cudaStreamPerThread).value();
  int ran = 0;
  std::thread([&] {
    const StreamId theirs = device_->adopt_stream(cudaStreamPerThread).value();
    EXPECT_NE(theirs, mine);
    EXPECT_OK(device_->launch_host(count, &ran, theirs));
    EXPECT_OK(device_->synchronize(theirs));
    EXPECT_EQ(ran, 1);
    EXPECT_FAILS(device_->launch_host(count, &ran, mine), failed_precondition, stream);
    EXPECT_FAILS(device_->synchronize(mine), failed_precondition, stream);
    EXPECT_FAILS(device_->native_stream(mine), failed_precondition, stream);
    EXPECT_OK(device_->destroy_stream(theirs));
  }).join();
  EXPECT_OK(device_->launch_host(count, &ran, mine));
  std::thread([&] { EXPECT_OK(device_->destroy_stream(mine)); }).join();
  EXPECT_EQ(ran, 2) << "destroying waited for the work";
  EXPECT_FAILS(device_->native_stream(mine), not_found, stream);
}

TEST_F(CudaStreamsTest, CopiesAndFillsAreCapturedAndHostFunctionsRefused) {
  auto* pinned = static_cast<std::uint8_t*>(allocate(64, MemoryKind::pinned_staging));
  void* memory = allocate(64);
  int ran = 0;
  std::uint8_t pageable[64] = {};
  ASSERT_EQ(cudaStreamBeginCapture(native(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_OK(device_->fill(memory, 5, 64, stream_));
  EXPECT_OK(device_->copy(pinned, memory, 64, stream_));
  EXPECT_FAILS(device_->launch_host(count, &ran, stream_), failed_precondition, stream);
  EXPECT_FAILS(device_->copy(memory, pageable, 64, stream_), failed_precondition, stream);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(native(), &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  std::memset(pinned, 0, 64);
  ASSERT_EQ(cudaGraphLaunch(executable, native()), cudaSuccess);
  EXPECT_OK(device_->synchronize(stream_));
  EXPECT_EQ(pinned[63], 5);
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_OK(device_->free(pinned));
  EXPECT_OK(device_->free(memory));
}

TEST_F(CudaStreamsTest, QueueingCopyingAndEventsAllocateNothing) {
  const StreamId compute = device_->create_stream().value();
  const EventId uploaded = device_->create_event().value();
  void* pinned = allocate(4096, MemoryKind::pinned_staging);
  void* memory = allocate(4096);
  int ran = 0;
  bool all_ok = true;
  const test::HeapCounter heap;
  for (int i = 0; i < 200; ++i) {
    all_ok &= device_->copy(memory, pinned, 4096, stream_).is_ok();
    all_ok &= device_->record(uploaded, stream_).is_ok();
    all_ok &= device_->wait(compute, uploaded).is_ok();
    all_ok &= device_->fill(memory, 1, 4096, compute).is_ok();
    all_ok &= device_->launch_host(count, &ran, compute).is_ok();
    all_ok &= device_->is_complete(uploaded).is_ok();
    all_ok &= device_->synchronize(compute).is_ok();
  }
  const std::int64_t allocations = heap.count();
  EXPECT_TRUE(all_ok);
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(ran, 200);
  EXPECT_OK(device_->free(pinned));
  EXPECT_OK(device_->free(memory));
}

}  // namespace
}  // namespace kvarena
