#pragma once

/// @file
/// Asks the CUDA driver where memory lies. Thread-safe; leaves no error behind and reads nothing.

#include "device/cuda_context.hpp"

#include "kvarena/device/residency.hpp"

#include <cstdint>

namespace kvarena {

/// What one byte is, by the runtime alone: cheap enough for every copy. Tells host from device
/// memory; of device memory it says vram, whichever GPU's it is.
Result<MemoryPlace> cuda_place_at(const CudaContext& context, const void* pointer);
/// What the whole range is, by runtime and driver: first and last byte, the driver's allocation,
/// and of virtual memory each mapping.
Result<Placement> cuda_place_of(const CudaContext& context, const void* pointer,
                                std::uint64_t bytes);

}  // namespace kvarena
