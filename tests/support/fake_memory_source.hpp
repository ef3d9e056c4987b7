#pragma once

/// @file
/// The operating system as a test wants it: says how much is available, refuses when told to, and
/// counts what it has given. Thread-safe; memory comes from the C++ heap, so sanitizers see it.

#include "kvarena/device/host_device.hpp"

#include <atomic>
#include <cstdint>
#include <exception>
#include <new>

namespace kvarena::test {

/// A HostMemorySource under the test's control.
class FakeMemorySource final : public HostMemorySource {
 public:
  std::atomic<std::uint64_t> available{std::uint64_t{1} << 40};  ///< what available_bytes says
  std::atomic<std::int32_t> refuse_with{0};                      ///< an errno value; 0: serve
  std::atomic<std::int64_t> live_bytes{0};                       ///< given and not taken back
  std::atomic<std::int64_t> num_live{0};                         ///< pieces, likewise
  std::atomic<std::uint64_t> num_given{0};                       ///< pieces ever
  std::atomic<std::uint64_t> num_taken_back{0};                  ///< pieces ever

  void* allocate(std::uint64_t bytes, std::uint64_t alignment_bytes,
                 std::int32_t* native_error) noexcept override {
    if (const std::int32_t refusal = refuse_with; refusal != 0) {
      *native_error = refusal;
      return nullptr;
    }
    // One alignment for all, because free is not told which it was.
    if (alignment_bytes > kAlignment) std::terminate();
    void* pointer = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
    if (pointer == nullptr) {
      *native_error = 12;
      return nullptr;
    }
    live_bytes += static_cast<std::int64_t>(bytes);
    ++num_live;
    ++num_given;
    return pointer;
  }
  void free(void* pointer, std::uint64_t bytes) noexcept override {
    live_bytes -= static_cast<std::int64_t>(bytes);
    --num_live;
    ++num_taken_back;
    ::operator delete (pointer, std::align_val_t{kAlignment});
  }
  std::uint64_t available_bytes() const noexcept override { return available; }

 private:
  static constexpr std::size_t kAlignment = 4096;
};

}  // namespace kvarena::test
