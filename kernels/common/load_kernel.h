#pragma once

/// @file
/// Loads the code of kernels. CUDA loads a kernel when it is launched for the first time, and takes
/// device memory for it. On a GPU that is full by then, that launch and all later ones of the
/// kernel fail. So whoever fills a GPU loads its kernels before.

#include "kernels/common/launch_checks.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Loads kernels on the current GPU; loaded ones cost nothing. Asking for a kernel's attributes
/// loads it. Returns device_error.
template <class... Kernel>
Status load_kernels(Kernel*... kernels) noexcept {
  cudaFuncAttributes attributes{};
  cudaError_t error = cudaSuccess;
  const auto load = [&](const void* kernel) {
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  };
  (load(reinterpret_cast<const void*>(kernels)), ...);
  return launch_status(error);
}

}  // namespace kvarena::kernels
