#pragma once

/// @file
/// `CudaGraphTimer`: the time of calls captured back to back in a CUDA graph, median of the
/// replays, divided by the calls. The graphs of several series are replayed in turn.

#include "kvarena/device/cuda_device.hpp"
#include "tools/attention_meter/device_buffer.hpp"
#include "tools/attention_meter/series.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvarena::meter {

/// A stream of the device, destroyed with the object.
class OwnStream {
 public:
  explicit OwnStream(CudaDevice& device) : device_(device) {
    const Result<StreamId> created = device.create_stream();
    require(created.status());
    id_ = *created;
    native_ = static_cast<cudaStream_t>(device.native_stream(id_).value());
  }
  ~OwnStream() { static_cast<void>(device_.destroy_stream(id_)); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  StreamId id() const noexcept { return id_; }
  cudaStream_t native() const noexcept { return native_; }

 private:
  CudaDevice& device_;
  StreamId id_;
  cudaStream_t native_ = nullptr;
};

/// Times work on one stream. Borrows device and stream; move-only by having events.
class CudaGraphTimer {
 public:
  /// Throws Failure. The device is current.
  CudaGraphTimer(const CudaDevice& device, cudaStream_t stream, std::int32_t replays)
      : device_(device), stream_(stream), replays_(replays) {
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  ~CudaGraphTimer() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }
  CudaGraphTimer(const CudaGraphTimer&) = delete;
  CudaGraphTimer& operator=(const CudaGraphTimer&) = delete;

  /// Median microseconds of one call of each of `all`. A round replays the graph of each series
  /// once, in turn. Throws Failure with what a call or CUDA returned.
  Medians medians(const std::vector<Series>& all) {
    std::vector<Graph> graphs(all.size());
    std::vector<std::vector<float>> times(all.size());
    float longest = 0.0F;
    for (std::size_t i = 0; i < all.size(); ++i) {
      capture(all[i], graphs[i]);
      for (int n = 1; n < kWarmUps; ++n) check(cudaGraphLaunch(graphs[i].executable, stream_));
      longest = std::max(longest, replayed_ms(graphs[i]));
    }
    const std::int32_t rounds = rounds_within(kGpuLimits, replays_, longest * 1e3);
    for (std::int32_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < all.size(); ++i) times[i].push_back(replayed_ms(graphs[i]));
    }
    Medians medians{{}, rounds};
    for (std::size_t i = 0; i < all.size(); ++i) {
      medians.us.push_back(static_cast<double>(median(times[i])) * 1e3 / all[i].num_calls);
    }
    return medians;
  }

  /// Calls of a round, at most `most`, as one call takes long: found by one call.
  std::int32_t calls_of(std::int32_t most, const std::function<Status(std::int32_t)>& call) {
    check(cudaEventRecord(begin_, stream_));
    require(call(0));
    return calls_within(kGpuLimits, most, 1e3 * static_cast<double>(elapsed_ms()));
  }

 private:
  static constexpr int kWarmUps = 5;
  static constexpr TimeLimits kGpuLimits{.round_us = 8e3, .all_us = 6e5};

  struct Graph {
    Graph() = default;
    ~Graph() {
      if (executable != nullptr) cudaGraphExecDestroy(executable);
      if (graph != nullptr) cudaGraphDestroy(graph);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
  };

  void capture(const Series& series, Graph& graph) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    Status status;
    for (std::int32_t i = 0; i < series.num_calls && status; ++i) status = series.call(i);
    const cudaError_t captured = cudaStreamEndCapture(stream_, &graph.graph);
    require(status);
    check(captured);
    check(cudaGraphInstantiate(&graph.executable, graph.graph, 0));
  }
  float replayed_ms(const Graph& graph) {
    check(cudaEventRecord(begin_, stream_));
    check(cudaGraphLaunch(graph.executable, stream_));
    return elapsed_ms();
  }
  /// Since begin_ was recorded.
  float elapsed_ms() {
    float ms = 0.0F;
    check(cudaEventRecord(end_, stream_));
    check(cudaEventSynchronize(end_));
    check(cudaEventElapsedTime(&ms, begin_, end_));
    return ms;
  }
  void check(cudaError_t error) const { require(device_.check(error, Resource::stream)); }

  const CudaDevice& device_;
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::int32_t replays_;
};

}  // namespace kvarena::meter
