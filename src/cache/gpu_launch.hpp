#pragma once

/// @file
/// Launching kernels of a CUDA backend.

#include "device/current_gpu.hpp"
#include "kvarena/device/cuda_device.hpp"

namespace kvarena {

/// Runs `launch(native stream)` with the GPU current. CUDA failures go through the device, which
/// notices a lost GPU.
template <class Launch>
Status launch_on_gpu(CudaDevice& device, StreamId stream, std::int32_t ordinal, Launch launch) {
  const Result<void*> native = device.native_stream(stream);
  if (!native) return native.status();
  if (device.lost_to() != 0) return device.check(device.lost_to(), Resource::stream);
  const CurrentGpu current(ordinal);
  if (current.error() != cudaSuccess) return device.check(current.error(), Resource::device);
  const Status status = launch(*native);
  const bool is_told = device.lost_to() != 0;  // an earlier call has reported the error
  if (status.code != StatusCode::device_error || is_told) return status;
  return device.check(status.native, status.resource);
}

}  // namespace kvarena
