#pragma once

/// @file
/// `CudaGraphTimer`: the time of calls captured back to back in a CUDA graph, median of the
/// replays, divided by the calls.

#include "kvarena/device/cuda_device.hpp"
#include "tools/attention_meter/device_buffer.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvarena::meter {

/// Times work on one stream. Borrows device and stream; move-only by having events.
class CudaGraphTimer {
 public:
  /// Throws Failure. The device is current.
  CudaGraphTimer(const CudaDevice& device, cudaStream_t stream, int replays)
      : device_(device), stream_(stream), times_(static_cast<std::size_t>(replays)) {
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  ~CudaGraphTimer() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }
  CudaGraphTimer(const CudaGraphTimer&) = delete;
  CudaGraphTimer& operator=(const CudaGraphTimer&) = delete;

  /// Median microseconds of one of `calls` calls of `launch(i)`, which queues on the stream. Throws
  /// Failure with what a launch or CUDA returned.
  template <class Launch>
  double microseconds(int calls, Launch launch) {
    Graph graph;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    Status status;
    for (int i = 0; i < calls && status; ++i) status = launch(i);
    const cudaError_t captured = cudaStreamEndCapture(stream_, &graph.graph);
    require(status);
    check(captured);
    check(cudaGraphInstantiate(&graph.executable, graph.graph, 0));
    for (int i = 0; i < kWarmUps; ++i) check(cudaGraphLaunch(graph.executable, stream_));
    for (float& ms : times_) {
      check(cudaEventRecord(begin_, stream_));
      check(cudaGraphLaunch(graph.executable, stream_));
      check(cudaEventRecord(end_, stream_));
      check(cudaEventSynchronize(end_));
      check(cudaEventElapsedTime(&ms, begin_, end_));
    }
    const auto middle = times_.begin() + static_cast<std::ptrdiff_t>(times_.size() / 2);
    std::nth_element(times_.begin(), middle, times_.end());
    return static_cast<double>(*middle) * 1e3 / calls;
  }

 private:
  static constexpr int kWarmUps = 5;

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

  void check(cudaError_t error) const { require(device_.check(error, Resource::stream)); }

  const CudaDevice& device_;
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::vector<float> times_;
};

}  // namespace kvarena::meter
