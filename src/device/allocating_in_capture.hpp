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

}  // namespace kvarena
