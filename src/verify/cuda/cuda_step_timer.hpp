#pragma once

/// @file
/// `CudaStepTimer`: measures the GPU's time for the attention of each step with CUDA events. One
/// thread at a time. The device must outlive it.

#include "verify/verification.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvarena::verify {

/// Adds up times by the kind of step.
class CudaStepTimer {
 public:
  explicit CudaStepTimer(const CudaDevice& device) noexcept : device_(device) {}
  ~CudaStepTimer();
  CudaStepTimer(const CudaStepTimer&) = delete;
  CudaStepTimer& operator=(const CudaStepTimer&) = delete;

  /// Makes events for `max_spans` spans a step. Returns device_error.
  Status create(std::int32_t max_spans);

  /// Begins a step. `decode_kv_bytes` is what attention reads when all rows decode, and 0 for a
  /// step with prompts.
  void begin_step(std::int64_t decode_kv_bytes) noexcept { decode_kv_bytes_ = decode_kv_bytes; }
  /// Queues the begin of a span. Returns device_error.
  Status start(StreamId stream) { return record(2 * spans_, stream); }
  /// Queues the end of the span. Returns device_error.
  Status stop(StreamId stream) { return record(2 * spans_++ + 1, stream); }
  /// Adds up the spans of the step. Requires that the step's work has completed. Returns
  /// device_error.
  Status collect();
  /// Returns the sums.
  const MeasuredReport& report() const noexcept { return report_; }

 private:
  Status record(std::size_t index, StreamId stream);

  const CudaDevice& device_;
  std::vector<cudaEvent_t> events_;
  std::size_t spans_ = 0;  // of this step
  std::int64_t decode_kv_bytes_ = 0;
  MeasuredReport report_;
};

}  // namespace kvarena::verify
