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
  const Result<EventId> event = device.create_event();
  if (!event) return event.status();
  ring.passed_ = *event;
  return ring;
}

StepRing::StepRing(StepRing&& other) noexcept
    : device_(other.device_),
      done_(std::exchange(other.done_, {})),
      passed_(std::exchange(other.passed_, {})) {}

StepRing::~StepRing() {
  for (const EventId event : done_) static_cast<void>(device_->destroy_event(event));
  if (passed_ != EventId{}) static_cast<void>(device_->destroy_event(passed_));
}

Status StepRing::wait(std::size_t index) { return wait_until_over(*device_, done_[index]); }

Result<bool> StepRing::is_complete(std::size_t index) {
  return kvarena::is_complete(*device_, done_[index]);
}

Status StepRing::mark(std::size_t index, StreamId stream) {
  return unless_destroyed(device_->record(done_[index], stream));
}

Status StepRing::pass(StreamId from, StreamId to) {
  const Status recorded = unless_destroyed(device_->record(passed_, from));
  return recorded ? device_->wait(to, passed_) : recorded;
}

}  // namespace kvarena
