#pragma once

/// @file
/// What GPU benchmarks share: a device, memory that is released with it, the time of a CUDA graph
/// of back-to-back calls, and the copy and write ceilings measured in the same run. A failure ends
/// the program.

#include "kvarena/device/cuda_device.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::bench {

inline constexpr int kReplays = 31;
inline constexpr std::int64_t kPoolBytes = 6LL << 30;
inline constexpr std::int64_t kRotatedBytes = 1LL << 30;

inline void check(cudaError_t error, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check((call), __LINE__)

inline void check(const Status& status, int line) {
  if (status.is_ok()) return;
  std::fprintf(stderr, "line %d: %s\n", line, describe(status).c_str());
  std::exit(1);
}

/// The GPU; everything allocated on it is released with it.
inline CudaDevice& gpu() {
  static const std::unique_ptr<CudaDevice> device = [] {
    Result<std::unique_ptr<CudaDevice>> created = CudaDevice::create();
    if (!created) {
      std::fprintf(stderr, "%s\n", describe_cuda(created.status()).c_str());
      std::exit(1);
    }
    return std::move(*created);
  }();
  return *device;
}

template <class T>
T* allocate(std::int64_t count) {
  const Result<void*> memory =
      gpu().allocate({.bytes = static_cast<std::uint64_t>(count) * sizeof(T)});
  check(memory.status(), __LINE__);
  return static_cast<T*>(*memory);
}

template <class T>
T* on_device(const std::vector<T>& values) {
  T* device = allocate<T>(static_cast<std::int64_t>(values.size()));
  CHECK(cudaMemcpy(device, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

static __global__ void read_write(const uint4* from, uint4* to, std::int64_t units) {
  const std::int64_t first = blockIdx.x * std::int64_t{1024} + threadIdx.x;
  uint4 v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i * 256 < units && from != nullptr) v[i] = __ldcs(from + first + i * 256);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i * 256 < units) to[first + i * 256] = from != nullptr ? v[i] : uint4{1, 2, 3, 4};
  }
}

/// What runs: call number `i` of a graph, on a stream.
using Call = std::function<void(int i, cudaStream_t stream)>;

class Bench {
 public:
  Bench() {
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
    pool_ = allocate<std::byte>(kPoolBytes);
    flat_ = allocate<std::byte>(2 * kRotatedBytes);
    CHECK(cudaMemsetAsync(pool_, 0x11, kPoolBytes, stream_));
    CHECK(cudaMemsetAsync(flat_, 0x22, 2 * kRotatedBytes, stream_));
    CHECK(cudaStreamSynchronize(stream_));
  }

  /// Microseconds a call.
  double time(int calls, const Call& call) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < calls; ++i) call(i, stream_);
    CHECK(cudaStreamEndCapture(stream_, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<float> ms(kReplays);
    for (int warm = 0; warm < 3; ++warm) CHECK(cudaGraphLaunch(exec, stream_));
    for (float& t : ms) {
      CHECK(cudaEventRecord(begin_, stream_));
      CHECK(cudaGraphLaunch(exec, stream_));
      CHECK(cudaEventRecord(end_, stream_));
      CHECK(cudaEventSynchronize(end_));
      CHECK(cudaEventElapsedTime(&t, begin_, end_));
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    std::nth_element(ms.begin(), ms.begin() + kReplays / 2, ms.end());
    return static_cast<double>(ms[kReplays / 2]) * 1e3 / calls;
  }

  /// Microseconds to copy (or only write) that many bytes: the best of the driver and a plain
  /// kernel.
  std::pair<double, double> ceiling(std::int64_t bytes, bool copies) {
    const int calls = calls_of(bytes);
    const auto at = [&](std::byte* base, int i) { return base + bytes * i; };
    const double driver = time(calls, [&](int i, cudaStream_t s) {
      if (copies) {
        CHECK(cudaMemcpyAsync(at(pool_, i), at(flat_, i), static_cast<std::size_t>(bytes),
                              cudaMemcpyDeviceToDevice, s));
      } else {
        CHECK(cudaMemsetAsync(at(pool_, i), 0, static_cast<std::size_t>(bytes), s));
      }
    });
    const double kernel = time(calls, [&](int i, cudaStream_t s) {
      const auto blocks = static_cast<unsigned>((bytes + 16383) / 16384);
      read_write<<<blocks, 256, 0, s>>>(
          copies ? reinterpret_cast<const uint4*>(at(flat_, i)) : nullptr,
          reinterpret_cast<uint4*>(at(pool_, i)), bytes / 16);
    });
    return {driver, kernel};
  }

  static int calls_of(std::int64_t bytes) {
    return static_cast<int>(std::clamp<std::int64_t>(kRotatedBytes / bytes, 2, 64));
  }

  /// One line: `moved` bytes are read and written, or written only.
  void report(const std::string& name, std::int64_t bytes, bool copies, double us) {
    const auto [driver, kernel] = ceiling(bytes, copies);
    const double best = std::min(driver, kernel);
    std::printf("%-46s %9.1f MB %9.2f us %8.1f GB/s   driver %9.2f us kernel %9.2f us   %5.1f %%\n",
                name.c_str(), static_cast<double>(bytes) / 1e6, us,
                static_cast<double>(bytes) * (copies ? 2e-3 : 1e-3) / us, driver, kernel,
                100 * best / us);
    std::fflush(stdout);
  }

  std::byte* pool() const { return pool_; }
  std::byte* flat() const { return flat_; }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::byte* pool_ = nullptr;
  std::byte* flat_ = nullptr;
};

}  // namespace kvarena::bench
