#pragma once

/// @file
/// `Workspaces`: a backend's attention workspaces, all of one size. Owns them
/// (IntermediateBuffers); move-only. The device must outlive it.

#include "kvarena/base/result.hpp"
#include "kvarena/device/device.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvarena {

/// How many workspaces, and how large.
struct WorkspacePlan {
  std::int64_t bytes = 0;             ///< of one
  std::uint64_t alignment_bytes = 1;  ///< of each
  std::int32_t count = 0;             ///< 0: none is needed
};

/// Device memory of a plan.
class Workspaces {
 public:
  /// None.
  Workspaces() = default;
  /// Returns what Device::allocate returns; nothing is left behind then.
  static Result<Workspaces> create(Device& device, const WorkspacePlan& plan);
  ~Workspaces();
  Workspaces(Workspaces&& other) noexcept;
  Workspaces& operator=(Workspaces&& other) noexcept;

  /// Bytes of each.
  std::int64_t bytes() const noexcept { return bytes_; }
  /// One of them, or nullptr past the last.
  std::byte* at(std::size_t index) const noexcept {
    return index < memory_.size() ? memory_[index] : nullptr;
  }

 private:
  Device* device_ = nullptr;
  std::int64_t bytes_ = 0;
  std::vector<std::byte*> memory_;
};

}  // namespace kvarena
