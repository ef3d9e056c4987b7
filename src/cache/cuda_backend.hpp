#pragma once

/// @file
/// The CUDA backend of a KvCache: block tables mirrored on the device by their changes, kernels on
/// the home stream, steps that can be recorded in a graph.

#include "cache/backend.hpp"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/device/device.hpp"

#include <memory>

namespace kvarena {

/// Returns unsupported (device) for a device that is no CudaDevice and in a build without CUDA,
/// what cuda::check_cache, DeviceTables::create and Device::allocate return.
Result<std::unique_ptr<Backend>> create_cuda_backend(Device& device, const Arena& arena,
                                                     StreamId stream,
                                                     const BackendOptions& options);

}  // namespace kvarena
