#include "step/step_ring.hpp"

#include "step/event_wait.hpp"

#include <new>
#include <utility>

namespace kvarena {

Result<StepRing> StepRing::create(Device& device, std::int32_t steps_in_flight) {
  StepRing ring(device);
  const auto slots = static_cast<std::size_t>(steps_in_flight);
  try {
    ring.done_.reserve(slots);
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, slots * sizeof(EventId), 0);
  }
  while (ring.done_.size() < slots) {
    const Result<EventId> event = device.create_event();
    if (!event) return event.status();
    ring.done_.push_back(*event);
  }
  return ring;
}

StepRing::StepRing(StepRing&& other) noexcept
    : device_(other.device_), done_(std::move(other.done_)) {
  other.done_.clear();
}

StepRing::~StepRing() {
  for (const EventId event : done_) static_cast<void>(device_->destroy_event(event));
}

Status StepRing::wait(std::size_t index) { return wait_until_over(*device_, done_[index]); }

Status StepRing::mark(std::size_t index, StreamId stream) {
  return device_->record(done_[index], stream);
}

}  // namespace kvarena
