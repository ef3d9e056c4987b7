#pragma once

#include <cuda_runtime_api.h>

namespace kvarena {

/// While it lives, its thread may allocate although a stream is being captured: CUDA forbids this
/// in two of the three capture modes, because it cannot know that the graph does without the
/// memory.
class AllocatingInCapture {
 public:
  AllocatingInCapture() noexcept { exchange(); }
  ~AllocatingInCapture() { exchange(); }
  AllocatingInCapture(const AllocatingInCapture&) = delete;
  AllocatingInCapture& operator=(const AllocatingInCapture&) = delete;

 private:
  void exchange() noexcept { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// Writes the GPU of a stream. A stream that is being captured is not asked, because that would end
/// the capture: `gpu` stays.
inline cudaError_t ask_for_gpu(cudaStream_t stream, int* gpu) noexcept {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &capture);
  if (error != cudaSuccess || capture != cudaStreamCaptureStatusNone) return error;
  return cudaStreamGetDevice(stream, gpu);
}

}  // namespace kvarena
