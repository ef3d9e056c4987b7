#pragma once

/// @file
/// Allocation for the CUDA device: cudaMalloc and cudaHostAlloc, with the requested alignment.
/// Thread-safe.

#include "device/cuda_context.hpp"

#include "kvarena/device/device.hpp"

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace kvarena {

/// Allocates and frees the memory of one GPU.
class CudaMemory {
 public:
  /// `context` must outlive this.
  explicit CudaMemory(const CudaContext& context) noexcept : context_(context) {}

  /// Allocates memory of `kind`. Returns device_error; native is cudaErrorMemoryAllocation when
  /// there is no memory.
  Result<void*> allocate(MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment_bytes);
  /// Frees memory of allocate.
  Status free(MemoryKind kind, void* pointer);
  /// Returns the total and free memory that the driver reports.
  Result<MemoryInfo> info() const;

 private:
  const CudaContext& context_;
  std::mutex mutex_;
  /// The first bytes of the driver's allocations, for pointers that were moved up to be aligned.
  std::unordered_map<void*, void*> first_byte_of_;
};

}  // namespace kvarena
