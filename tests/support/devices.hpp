#pragma once

/// @file
/// Tests that run on every kind of device: the host always, CUDA where there is a GPU (or has to be
/// one: KVARENA_REQUIRE_GPU).

#include "support/gpu.hpp"

#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::test {

/// The kinds of devices to test on here.
inline std::vector<DeviceKind> device_kinds() {
  if (why_no_gpu().empty() || is_gpu_required()) return {DeviceKind::host, DeviceKind::cuda};
  return {DeviceKind::host};
}

/// A device of that kind, or nullptr.
inline std::unique_ptr<Device> make_device(DeviceKind kind, const HostDeviceOptions& host = {}) {
  if (kind == DeviceKind::cuda) return make_cuda({.max_host_functions = 1 << 16});
  auto device = HostDevice::create(host);
  return device ? std::move(device).value() : nullptr;
}

/// For the names of parametrised tests.
inline std::string kind_name(const ::testing::TestParamInfo<DeviceKind>& info) {
  return info.param == DeviceKind::host ? "host" : "cuda";
}

}  // namespace kvarena::test

/// Skips a test on CUDA where there is no GPU, or fails it where there has to be one.
#define KVARENA_NEEDS_DEVICE(kind)             \
  if ((kind) == ::kvarena::DeviceKind::cuda) { \
    KVARENA_NEEDS_GPU();                       \
  }                                            \
  static_assert(true)
