#include "cache/workspaces.hpp"

#include <utility>

namespace kvarena {

Result<Workspaces> Workspaces::create(Device& device, const WorkspacePlan& plan) {
  Workspaces workspaces;
  workspaces.device_ = &device;
  workspaces.bytes_ = plan.bytes;
  workspaces.memory_.reserve(static_cast<std::size_t>(plan.count));
  for (std::int32_t i = 0; i < plan.count; ++i) {
    const Result<void*> memory = device.allocate({.bytes = static_cast<std::uint64_t>(plan.bytes),
                                                  .alignment_bytes = plan.alignment_bytes,
                                                  .purpose = MemoryPurpose::intermediate_buffers,
                                                  .description = "attention workspace"});
    if (!memory) return memory.status();
    workspaces.memory_.push_back(static_cast<std::byte*>(*memory));
  }
  return workspaces;
}

Workspaces::~Workspaces() {
  for (std::byte* memory : memory_) static_cast<void>(device_->free(memory));
}

Workspaces::Workspaces(Workspaces&& other) noexcept
    : device_(other.device_), bytes_(other.bytes_), memory_(std::exchange(other.memory_, {})) {}

Workspaces& Workspaces::operator=(Workspaces&& other) noexcept {
  // `taken` frees the workspaces that were here.
  Workspaces taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(bytes_, taken.bytes_);
  std::swap(memory_, taken.memory_);
  return *this;
}

}  // namespace kvarena
