#pragma once

/// @file
/// What one GPU is.

#include "device/cuda_context.hpp"

#include "kvarena/device/cuda_device.hpp"

namespace kvarena {

/// Everything that list_devices says of the GPU; `status` says what could not be asked.
CudaDeviceInfo cuda_device_info(const CudaContext& context);

}  // namespace kvarena
