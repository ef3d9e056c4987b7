#pragma once

/// @file
/// Memory that is reserved and cannot be touched: pools of any size on a small machine. Reading or
/// writing a byte of it ends the program, which proves that nobody does. Thread-safe.

#include "kvarena/device/host_device.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>

namespace kvarena::test {

/// A HostMemorySource of address space alone; what it has available is up to the device's capacity.
class ReservedMemory final : public HostMemorySource {
 public:
  std::atomic<std::int64_t> reserved_bytes{0};  ///< given and not taken back

  void* allocate(std::uint64_t bytes, std::uint64_t alignment_bytes,
                 std::int32_t* native_error) noexcept override {
    if (alignment_bytes > kPageBytes) std::terminate();
    // Nothing is accounted for pages without access, whatever the machine's overcommit policy.
    void* const pointer =
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pointer == MAP_FAILED) {
      *native_error = errno;
      return nullptr;
    }
    reserved_bytes += static_cast<std::int64_t>(bytes);
    return pointer;
  }
  void free(void* pointer, std::uint64_t bytes) noexcept override {
    reserved_bytes -= static_cast<std::int64_t>(bytes);
    ::munmap(pointer, bytes);
  }
  std::uint64_t available_bytes() const noexcept override { return std::uint64_t{1} << 48; }

 private:
  static constexpr std::uint64_t kPageBytes = 4096;
};

}  // namespace kvarena::test
