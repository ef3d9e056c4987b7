#pragma once

/// @file
/// The description of one GPU.

#include "device/cuda_context.hpp"

#include "kvarena/device/cuda_device.hpp"

namespace kvarena {

/// Returns everything that list_devices reports about the GPU. `status` says what could not be
/// asked.
CudaDeviceInfo cuda_device_info(const CudaContext& context);

}  // namespace kvarena
