#pragma once

/// @file
/// A CUDA graph of a recorded step.

#include "kvarena/base/status.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace kvarena::test {

/// A graph that the test launches on the stream it was captured from.
class Graph {
 public:
  explicit Graph(cudaStream_t stream) : stream_(stream) {}
  ~Graph() {
    if (executable_ != nullptr) {
      EXPECT_EQ(cudaGraphExecDestroy(executable_), cudaSuccess);
    }
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Captures what `record` queues on the stream; returns its status.
  template <class Record>
  Status capture(Record record) {
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const Status status = record();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    if (graph == nullptr) return status;
    EXPECT_EQ(cudaGraphInstantiate(&executable_, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return status;
  }
  Status launch() const { return launch(stream_); }
  Status launch(cudaStream_t stream) const {
    const cudaError_t error = cudaGraphLaunch(executable_, stream);
    EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
    return {};
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace kvarena::test
