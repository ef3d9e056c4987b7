#pragma once

/// @file
/// Tests that need a GPU: they skip with one clear line where there is none. KVARENA_REQUIRE_GPU=1
/// turns every such skip into a failure, for machines that are there to have one.

#include "support/environment.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace kvarena::test {

/// Why there are no `num_gpus` GPUs here; empty when there are. Asked once.
inline std::string why_no_gpu(std::size_t num_gpus = 1) {
  static const CudaDeviceList list = list_devices();
  if (list.devices.empty()) return list.error;
  if (list.devices.size() >= num_gpus) return {};
  return "needs " + std::to_string(num_gpus) + " GPUs, found " +
         std::to_string(list.devices.size());
}

/// Whether the GPU has clusters of thread blocks.
inline bool has_clusters() {
  static const CudaDeviceList list = list_devices();
  return !list.devices.empty() && list.devices.front().major >= 9;
}

/// Whether a machine without a GPU is a failure.
inline bool is_gpu_required() { return number_from_environment("KVARENA_REQUIRE_GPU", 0) != 0; }

/// Whether a checker such as compute-sanitizer watches this program: it is a hundred times slower
/// then, and every array has to be an allocation of its own. KVARENA_SANITIZE_GPU=1 says so.
inline bool is_watched() { return number_from_environment("KVARENA_SANITIZE_GPU", 0) != 0; }

/// A CUDA device on GPU 0, or nullptr.
inline std::unique_ptr<CudaDevice> make_cuda(const CudaDeviceOptions& options = {}) {
  auto device = CudaDevice::create(options);
  return device ? std::move(device).value() : nullptr;
}

}  // namespace kvarena::test

/// Skips the test where there is no GPU, or fails it where there has to be one.
#define KVARENA_NEEDS_GPU()                                                           \
  if (const std::string why = ::kvarena::test::why_no_gpu(); !why.empty()) {          \
    if (::kvarena::test::is_gpu_required()) FAIL() << "KVARENA_REQUIRE_GPU: " << why; \
    GTEST_SKIP() << "no GPU: " << why;                                                \
  }                                                                                   \
  static_assert(true)
/// Skips the test where there are fewer than `num_gpus` GPUs.
#define KVARENA_NEEDS_GPUS(num_gpus)                                                 \
  if (const std::string why = ::kvarena::test::why_no_gpu(num_gpus); !why.empty()) { \
    GTEST_SKIP() << why;                                                             \
  }                                                                                  \
  static_assert(true)
