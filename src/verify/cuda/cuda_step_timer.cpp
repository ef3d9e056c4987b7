#include "verify/cuda/cuda_step_timer.hpp"

#include "device/current_gpu.hpp"

namespace kvarena::verify {

CudaStepTimer::~CudaStepTimer() {
  for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
}

Status CudaStepTimer::create(std::int32_t max_spans) {
  const CurrentGpu current(device_.ordinal());
  if (current.error() != cudaSuccess) return device_.check(current.error(), Resource::device);
  for (std::int32_t i = 0; i < 2 * max_spans; ++i) {
    cudaEvent_t event = nullptr;
    const cudaError_t error = cudaEventCreate(&event);
    if (error != cudaSuccess) return device_.check(error, Resource::event);
    events_.push_back(event);
  }
  return {};
}

Status CudaStepTimer::record(std::size_t index, StreamId stream) {
  const Result<void*> native = device_.native_stream(stream);
  if (!native) return native.status();
  const CurrentGpu current(device_.ordinal());
  if (current.error() != cudaSuccess) return device_.check(current.error(), Resource::device);
  return device_.check(cudaEventRecord(events_.at(index), static_cast<cudaStream_t>(*native)),
                       Resource::event);
}

Status CudaStepTimer::collect() {
  const CurrentGpu current(device_.ordinal());
  if (current.error() != cudaSuccess) return device_.check(current.error(), Resource::device);
  double us = 0.0;
  for (std::size_t i = 0; i < spans_; ++i) {
    float ms = 0.0F;
    const cudaError_t error = cudaEventElapsedTime(&ms, events_[2 * i], events_[2 * i + 1]);
    if (error != cudaSuccess) return device_.check(error, Resource::event);
    us += static_cast<double>(ms) * 1e3;
  }
  if (spans_ == 0) return {};
  spans_ = 0;
  if (decode_kv_bytes_ == 0) {
    ++report_.prompt_steps;
    report_.prompt_us += us;
    return {};
  }
  ++report_.decode_steps;
  report_.decode_kv_bytes += decode_kv_bytes_;
  report_.decode_us += us;
  return {};
}

}  // namespace kvarena::verify
