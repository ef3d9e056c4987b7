#pragma once

/// @file
/// Questions to the CUDA driver about where memory lies. Thread-safe. They leave no CUDA error
/// behind and do not read the memory.

#include "device/cuda_context.hpp"

#include "kvarena/device/residency.hpp"

#include <cstdint>

namespace kvarena {

/// Returns what one byte is, asked of the runtime alone, which is cheap enough for every copy. It
/// tells host from device memory, but reports the memory of any GPU as vram.
Result<MemoryPlace> cuda_place_at(const CudaContext& context, const void* pointer);
/// Returns what the whole range is, asked of runtime and driver: its first and last byte, the
/// driver's allocation, and each mapping of virtual memory.
Result<Placement> cuda_place_of(const CudaContext& context, const void* pointer,
                                std::uint64_t bytes);

}  // namespace kvarena
