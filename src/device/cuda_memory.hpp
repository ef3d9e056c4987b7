#pragma once

/// @file
/// Where the CUDA device's bytes come from: cudaMalloc and cudaHostAlloc, with the alignment that
/// was asked for. Thread-safe.

#include "device/cuda_context.hpp"

#include "kvarena/device/device.hpp"

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace kvarena {

/// The memory of one GPU.
class CudaMemory {
 public:
  /// `context` must outlive this.
  explicit CudaMemory(const CudaContext& context) noexcept : context_(context) {}

  /// Memory of `kind`. Returns device_error; native cudaErrorMemoryAllocation when there is none.
  Result<void*> allocate(MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment_bytes);
  /// Gives memory of allocate back.
  Status free(MemoryKind kind, void* pointer);
  /// What the driver has.
  Result<MemoryInfo> info() const;

 private:
  const CudaContext& context_;
  std::mutex mutex_;
  /// First bytes of the driver's allocations, for pointers that had to be moved up to be aligned.
  std::unordered_map<void*, void*> first_byte_of_;
};

}  // namespace kvarena
