#pragma once

/// @file
/// `CurrentGpu`: sets the GPU to which a thread's kernel launches go. Only in builds with CUDA.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvarena {

/// Makes a GPU the current one of this thread, during its lifetime.
class CurrentGpu {
 public:
  explicit CurrentGpu(std::int32_t ordinal) noexcept {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != ordinal) error_ = cudaSetDevice(ordinal);
    changed_ = error_ == cudaSuccess && before_ != ordinal;
  }
  ~CurrentGpu() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;
  cudaError_t error() const noexcept { return error_; }

 private:
  int before_ = 0;
  cudaError_t error_;
  bool changed_ = false;
};

}  // namespace kvarena
