#include "step/step_memory.hpp"

#include <cstring>
#include <utility>

namespace kvarena {
namespace {

/// Fills the arrays with their empty values and waits.
Status fill_arrays(Device& device, const StepMemory::Sizes& sizes, std::byte* arrays) {
  const Result<StreamId> stream = device.create_stream();
  if (!stream) return stream.status();
  const auto ones = static_cast<std::uint64_t>(sizes.ones);
  const std::uint64_t rest = static_cast<std::uint64_t>(sizes.device_bytes) - ones;
  Status status = device.fill(arrays, 0xff, ones, *stream);
  if (status) status = device.fill(arrays + sizes.ones, 0, rest, *stream);
  if (status) status = device.synchronize(*stream);
  const Status destroyed = device.destroy_stream(*stream);
  return status ? destroyed : status;
}

}  // namespace

StepMemory::StepMemory(StepMemory&& other) noexcept
    : device_(other.device_),
      arrays_(std::exchange(other.arrays_, nullptr)),
      staging_(std::exchange(other.staging_, nullptr)) {}

StepMemory::~StepMemory() {
  if (arrays_ != nullptr) static_cast<void>(device_->free(arrays_));
  if (staging_ != nullptr) static_cast<void>(device_->free(staging_));
}

Result<StepMemory> StepMemory::create(Device& device, const Sizes& sizes) {
  StepMemory memory(device);
  const Result<void*> arrays =
      device.allocate({.bytes = static_cast<std::uint64_t>(sizes.device_bytes),
                       .purpose = MemoryPurpose::intermediate_buffers,
                       .description = "block tables of the step"});
  if (!arrays) return arrays.status();
  memory.arrays_ = static_cast<std::byte*>(*arrays);
  const Result<void*> staging =
      device.allocate({.bytes = static_cast<std::uint64_t>(sizes.staging_bytes),
                       .purpose = MemoryPurpose::intermediate_buffers,
                       .kind = MemoryKind::pinned_staging,
                       .description = "staging ring of the step"});
  if (!staging) return staging.status();
  memory.staging_ = static_cast<std::byte*>(*staging);
  std::memset(memory.staging_, 0, static_cast<std::size_t>(sizes.staging_bytes));
  if (Status status = fill_arrays(device, sizes, memory.arrays_); !status) return status;
  return memory;
}

}  // namespace kvarena
