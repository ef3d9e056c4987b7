#pragma once

/// @file
/// What the CUDA driver says of one byte, and what that means. Pure, and without CUDA's headers, so
/// that every answer can be judged where there is no GPU.
///
/// Runtime, cudaPointerGetAttributes: up to CUDA 10 a pointer that CUDA does not know was an error
/// (cudaErrorInvalidValue), and the fields memoryType and isManaged stood beside `type`; since
/// CUDA 11 it is a success with cudaMemoryTypeUnregistered, and `type` alone says what the memory
/// is. `device` is the GPU that memory lies on, or for host memory the one that was current when it
/// was allocated; `hostPointer` is null for device memory that the host cannot reach.
/// Driver, cuPointerGetAttributes: attributes of a pointer that it does not know are 0, and the
/// call succeeds (since CUDA 7). IS_MANAGED is there since CUDA 6; DEVICE_ORDINAL, RANGE_START_ADDR
/// and RANGE_SIZE since CUDA 9.2; MAPPED and ALLOWED_HANDLE_TYPES since CUDA 10.2. RANGE is the
/// whole allocation, or for virtual memory the reservation, mapped or not.

#include "kvarena/device/residency.hpp"

#include <cstdint>
#include <string>

namespace kvarena {

/// cudaMemoryType as numbers; cuda_placement.cpp asserts that they are.
enum class RuntimeMemory : std::int32_t { unregistered = 0, host = 1, device = 2, managed = 3 };
/// CUmemorytype as numbers, likewise; 0 is the driver's answer for what it does not know.
enum class DriverMemory : std::uint32_t { none = 0, host = 1, device = 2, array = 3, unified = 4 };

/// What the runtime and the driver said of one byte.
struct DriverAnswer {
  RuntimeMemory type = RuntimeMemory::unregistered;  ///< the runtime's `type`
  std::int32_t device = -1;                          ///< the runtime's `device`
  const void* device_pointer = nullptr;              ///< the runtime's `devicePointer`
  const void* host_pointer = nullptr;                ///< the runtime's `hostPointer`
  DriverMemory memory = DriverMemory::none;          ///< MEMORY_TYPE
  bool is_managed = false;                           ///< IS_MANAGED
  bool is_mapped = false;             ///< MAPPED: virtual memory with something behind it
  std::int32_t ordinal = -1;          ///< DEVICE_ORDINAL
  std::uint64_t range_first = 0;      ///< RANGE_START_ADDR
  std::uint64_t range_bytes = 0;      ///< RANGE_SIZE
  std::uint64_t allowed_handles = 0;  ///< ALLOWED_HANDLE_TYPES: how it can be exported
};

/// What one byte is to GPU `ordinal`. Where runtime and driver differ, what is worse for residency.
MemoryPlace place_of(const DriverAnswer& answer, std::int32_t ordinal, bool is_integrated) noexcept;
/// The GPU that the byte belongs to; -1: none.
std::int32_t owner_of(const DriverAnswer& answer) noexcept;
/// How many bytes from `address` on the driver's range has; 0 when the driver names no range there.
std::uint64_t bytes_from(const DriverAnswer& answer, std::uint64_t address) noexcept;
/// The attributes in one line, by the names that CUDA's reference has for them.
std::string to_string(const DriverAnswer& answer);

}  // namespace kvarena
