#include "device/cuda_memory.hpp"

#include <cuda_runtime_api.h>

#include <new>

namespace kvarena {
namespace {

/// Allocates memory with the alignment that the driver gives.
Result<void*> allocate_raw(const CudaContext& context, MemoryKind kind, std::uint64_t bytes) {
  void* pointer = nullptr;
  const Status status = context.call(Resource::device_memory, 0, [&] {
    return kind == MemoryKind::device ? cudaMalloc(&pointer, bytes)
                                      : cudaHostAlloc(&pointer, bytes, cudaHostAllocDefault);
  });
  if (!status) return status;
  return pointer;
}

Status free_raw(const CudaContext& context, MemoryKind kind, void* pointer) {
  return context.call(Resource::device_memory, 0, [&] {
    return kind == MemoryKind::device ? cudaFree(pointer) : cudaFreeHost(pointer);
  });
}

bool is_aligned(const void* pointer, std::uint64_t alignment_bytes) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment_bytes == 0;
}

}  // namespace

/// When the driver aligns too little, allocates again with slack and moves the pointer up.
Result<void*> CudaMemory::allocate(MemoryKind kind, std::uint64_t bytes,
                                   std::uint64_t alignment_bytes) {
  Result<void*> first = allocate_raw(context_, kind, bytes);
  if (!first || is_aligned(*first, alignment_bytes)) return first;
  // Only small allocations are less aligned than a page. For them the slack costs nothing.
  if (Status status = free_raw(context_, kind, *first); !status) return status;
  first = allocate_raw(context_, kind, bytes + alignment_bytes);
  if (!first) return first;
  const std::uint64_t excess = reinterpret_cast<std::uintptr_t>(*first) % alignment_bytes;
  if (excess == 0) return first;
  void* const pointer = static_cast<char*>(*first) + (alignment_bytes - excess);
  try {
    const std::scoped_lock lock(mutex_);
    first_byte_of_.emplace(pointer, *first);
  } catch (const std::bad_alloc&) {
    static_cast<void>(free_raw(context_, kind, *first));
    return exhausted(Resource::host_memory, sizeof(void*), 0);
  }
  return pointer;
}

Status CudaMemory::free(MemoryKind kind, void* pointer) {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto moved = first_byte_of_.find(pointer); moved != first_byte_of_.end()) {
      pointer = moved->second;
      first_byte_of_.erase(moved);
    }
  }
  return free_raw(context_, kind, pointer);
}

Result<MemoryInfo> CudaMemory::info() const {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const Status status = context_.call(Resource::device_memory, 0,
                                      [&] { return cudaMemGetInfo(&free_bytes, &total_bytes); });
  if (!status) return status;
  return MemoryInfo{total_bytes, free_bytes};
}

}  // namespace kvarena
