#include "step/ticket_events.hpp"

#include "base/log_internal.hpp"
#include "step/event_wait.hpp"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

namespace kvarena {

Result<TicketEvents> TicketEvents::create(Device& device, std::int32_t max_open) {
  TicketEvents events(device);
  const auto count = static_cast<std::size_t>(max_open);
  try {
    events.free_events_.reserve(count);
    events.of_steps_.reserve(count);
    events.open_.reserve(count);
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, count * sizeof(Fence), 0);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Result<EventId> event = device.create_event();
    if (!event) return event.status();
    events.free_events_.push_back(*event);
  }
  return events;
}

TicketEvents::TicketEvents(TicketEvents&& other) noexcept
    : device_(other.device_),
      free_events_(std::exchange(other.free_events_, {})),
      of_steps_(std::exchange(other.of_steps_, {})),
      open_(std::exchange(other.open_, {})) {}

TicketEvents::~TicketEvents() {
  for (const EventId event : free_events_) static_cast<void>(device_->destroy_event(event));
  for (const std::vector<Fence>& fences : {std::cref(of_steps_), std::cref(open_)}) {
    for (const Fence& fence : fences) {
      if (fence.event != EventId{}) static_cast<void>(device_->destroy_event(fence.event));
    }
  }
}

// ---- opening ------------------------------------------------------------------------------------

/// Opens a ticket and records its event on `stream`.
Result<TicketEvents::Fence> TicketEvents::make(BlockManager& manager, StreamId stream) {
  if (free_events_.empty()) return exhausted(Resource::ticket, 1, 0, 0, Option::max_open_tickets);
  const EventId event = free_events_.back();
  if (Status status = device_->record(event, stream); !status) return status;
  const Result<Ticket> ticket = manager.open_ticket();
  if (!ticket) return ticket.status();
  free_events_.pop_back();
  return Fence{*ticket, event, 0};
}

Result<Ticket> TicketEvents::fence(BlockManager& manager, StreamId stream, std::uint64_t step) {
  Result<Fence> made = make(manager, stream);
  if (!made) return made.status();
  made->step = step;
  of_steps_.push_back(*made);
  return made->ticket;
}

Result<Ticket> TicketEvents::open(BlockManager& manager, StreamId stream) {
  const Result<Fence> made = make(manager, stream);
  if (!made) return made.status();
  open_.push_back(*made);
  return made->ticket;
}

Result<Ticket> TicketEvents::open(BlockManager& manager) {
  const Result<Ticket> ticket = manager.open_ticket();
  if (ticket) open_.push_back({*ticket, EventId{}, 0});
  return ticket;
}

// ---- retiring -----------------------------------------------------------------------------------

/// Retires a ticket and takes its event back.
Status TicketEvents::retire(BlockManager& manager, const Fence& fence) {
  if (Status status = manager.retire(fence.ticket); !status) return status;
  if (fence.event != EventId{}) free_events_.push_back(fence.event);
  return {};
}

Status TicketEvents::retire(BlockManager& manager, Ticket ticket) {
  const auto is_this = [ticket](const Fence& fence) { return fence.ticket == ticket; };
  const auto found = std::find_if(open_.begin(), open_.end(), is_this);
  if (found == open_.end()) {
    const bool is_of_step = std::any_of(of_steps_.begin(), of_steps_.end(), is_this);
    return is_of_step ? failed_precondition(Resource::ticket, ticket.value, kTicketOfStep)
                      : not_found(Resource::ticket, ticket.value);
  }
  if (found->event != EventId{}) {
    const Result<bool> over = is_over(*device_, found->event);
    if (!over) return over.status();
    if (!*over) return failed_precondition(Resource::ticket, ticket.value, kTicketAtWork);
  }
  if (Status status = retire(manager, *found); !status) return status;
  open_.erase(found);
  return {};
}

/// Retires in the order of opening, and keeps the tickets behind a failure.
Status TicketEvents::retire_through(BlockManager& manager, std::uint64_t last_step) {
  Status status;
  auto next = of_steps_.begin();
  for (; next != of_steps_.end() && next->step <= last_step; ++next) {
    status = wait_until_over(*device_, next->event);
    if (status) status = retire(manager, *next);
    if (!status) break;
  }
  of_steps_.erase(of_steps_.begin(), next);
  return status;
}

std::size_t TicketEvents::wait_for_all() {
  std::size_t without_stream = 0;
  for (const std::vector<Fence>& fences : {std::cref(of_steps_), std::cref(open_)}) {
    for (const Fence& fence : fences) {
      if (fence.event == EventId{}) {
        ++without_stream;
      } else {
        static_cast<void>(device_->synchronize(fence.event));
      }
    }
  }
  return without_stream;
}

/// Retires the tickets of one list whose work has completed. The others stay in the list.
Status TicketEvents::retire_completed(BlockManager& manager, std::vector<Fence>& fences) {
  Status status;
  auto kept = fences.begin();
  for (const Fence& fence : fences) {
    const Result<bool> over =
        !status || fence.event == EventId{} ? Result<bool>(false) : is_over(*device_, fence.event);
    if (!over) status = over.status();
    if (over && *over) {
      log_line(LogLevel::info, "eager: retired ticket {}{}", fence.ticket.value,
               OfObject{manager.name()});
      status = retire(manager, fence);
      if (status) continue;
    }
    *kept++ = fence;
  }
  fences.erase(kept, fences.end());
  return status;
}

Status TicketEvents::retire_completed(BlockManager& manager) {
  if (Status status = retire_completed(manager, of_steps_); !status) return status;
  return retire_completed(manager, open_);
}

}  // namespace kvarena
