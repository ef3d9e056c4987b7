#pragma once

/// @file
/// `Workspaces`: the attention workspaces of a backend, all of one size. It owns them
/// (IntermediateBuffers). Move-only. The device must outlive it.

#include "kvarena/base/result.hpp"
#include "kvarena/device/device.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvarena {

/// The number and size of workspaces.
struct WorkspacePlan {
  std::int64_t bytes = 0;             ///< bytes of each
  std::uint64_t alignment_bytes = 1;  ///< alignment of each
  std::int32_t count = 0;             ///< 0: none is needed
};

/// The device memory of a plan.
class Workspaces {
 public:
  /// Makes no workspaces.
  Workspaces() = default;
  /// Allocates the workspaces. Returns what Device::allocate returns; no memory is kept then.
  static Result<Workspaces> create(Device& device, const WorkspacePlan& plan);
  ~Workspaces();
  Workspaces(Workspaces&& other) noexcept;
  Workspaces& operator=(Workspaces&& other) noexcept;

  /// The bytes of each workspace.
  std::int64_t bytes() const noexcept { return bytes_; }
  /// Returns a workspace, or nullptr past the last.
  std::byte* at(std::size_t index) const noexcept {
    return index < memory_.size() ? memory_[index] : nullptr;
  }

 private:
  Device* device_ = nullptr;
  std::int64_t bytes_ = 0;
  std::vector<std::byte*> memory_;
};

}  // namespace kvarena
