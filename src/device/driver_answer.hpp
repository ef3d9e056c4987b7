#pragma once

/// @file
/// The CUDA driver's answer about one byte, and its meaning. Pure functions without CUDA's headers,
/// so that tests can judge every answer on machines without a GPU.
///
/// Runtime, cudaPointerGetAttributes: up to CUDA 10 a pointer that CUDA does not know was an error
/// (cudaErrorInvalidValue), and there were fields memoryType and isManaged beside `type`. Since
/// CUDA 11 it is a success with cudaMemoryTypeUnregistered, and `type` alone says what the memory
/// is. `device` is the GPU on which the memory lies; for host memory it is the GPU that was current
/// when the memory was allocated. `hostPointer` is null for device memory that the host cannot
/// reach.
///
/// Driver, cuPointerGetAttributes: the attributes of a pointer that the driver does not know are 0,
/// and the call succeeds (since CUDA 7). IS_MANAGED exists since CUDA 6; DEVICE_ORDINAL,
/// RANGE_START_ADDR and RANGE_SIZE since CUDA 9.2; MAPPED and ALLOWED_HANDLE_TYPES since CUDA 10.2.
/// RANGE is the whole allocation, or for virtual memory the reservation, mapped or not.

#include "kvarena/device/residency.hpp"

#include <cstdint>
#include <string>

namespace kvarena {

/// The numbers of cudaMemoryType; cuda_placement.cpp asserts them.
enum class RuntimeMemory : std::int32_t { unregistered = 0, host = 1, device = 2, managed = 3 };
/// The numbers of CUmemorytype, asserted there too. 0 is the driver's answer for unknown memory.
enum class DriverMemory : std::uint32_t { none = 0, host = 1, device = 2, array = 3, unified = 4 };

/// The answers of the runtime and the driver about one byte.
struct DriverAnswer {
  RuntimeMemory type = RuntimeMemory::unregistered;  ///< the runtime's `type`
  std::int32_t device = -1;                          ///< the runtime's `device`
  const void* device_pointer = nullptr;              ///< the runtime's `devicePointer`
  const void* host_pointer = nullptr;                ///< the runtime's `hostPointer`
  DriverMemory memory = DriverMemory::none;          ///< MEMORY_TYPE
  bool is_managed = false;                           ///< IS_MANAGED
  bool is_mapped = false;             ///< MAPPED: virtual memory that is mapped to physical memory
  std::int32_t ordinal = -1;          ///< DEVICE_ORDINAL
  std::uint64_t range_first = 0;      ///< RANGE_START_ADDR
  std::uint64_t range_bytes = 0;      ///< RANGE_SIZE
  std::uint64_t allowed_handles = 0;  ///< ALLOWED_HANDLE_TYPES: how it can be exported
};

/// Returns what one byte is for GPU `ordinal`. When runtime and driver differ, the answer that is
/// worse for residency counts.
MemoryPlace place_of(const DriverAnswer& answer, std::int32_t ordinal, bool is_integrated) noexcept;
/// Returns the GPU that the byte belongs to; -1: none.
std::int32_t owner_of(const DriverAnswer& answer) noexcept;
/// Returns how many bytes the driver's range has from `address` on. 0 when the driver reports no
/// range there.
std::uint64_t bytes_from(const DriverAnswer& answer, std::uint64_t address) noexcept;
/// Returns the attributes in one line, with the names of CUDA's reference.
std::string to_string(const DriverAnswer& answer);

}  // namespace kvarena
