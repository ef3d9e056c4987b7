#pragma once

/// @file
/// `TicketEvents`: the event of each ticket. There are two kinds of tickets. A step's ticket
/// (`fence`) is retired by a later step. The history of calls decides which step, and that step
/// waits for the ticket's work if it has to. An open ticket (`open`) is retired by the engine, and
/// nothing waits for it. One thread at a time. It owns its events.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// Values of `required` in the failed_precondition (ticket) of a ticket that was not retired.
inline constexpr std::uint64_t kTicketOfStep = 1;
inline constexpr std::uint64_t kTicketAtWork = 2;

/// Tickets in the order of issue, each with its event and the step in which it was opened.
class TicketEvents {
 public:
  /// Makes the events. Returns what Device::create_event returns, or exhausted (host_memory).
  static Result<TicketEvents> create(Device& device, std::int32_t max_open);
  ~TicketEvents();
  TicketEvents(TicketEvents&& other) noexcept;
  TicketEvents& operator=(TicketEvents&&) = delete;

  /// Opens a step's ticket for the work queued on `stream` so far. Returns exhausted (ticket), or
  /// what Device::record returns; no ticket is left open then.
  Result<Ticket> fence(BlockManager& manager, StreamId stream, std::uint64_t step);
  /// Opens an open ticket for the work queued on `stream` so far. Returns what fence returns.
  Result<Ticket> open(BlockManager& manager, StreamId stream);
  /// Opens an open ticket for work that no stream knows. Returns exhausted (ticket).
  Result<Ticket> open(BlockManager& manager);
  /// Retires an open ticket. Returns not_found (ticket), or failed_precondition (ticket) for a
  /// step's ticket and while the stream has not completed the ticket's work. O(open tickets).
  Status retire(BlockManager& manager, Ticket ticket);

  /// The number of steps' tickets that have not retired.
  std::int64_t num_of_steps() const noexcept { return std::ssize(of_steps_); }
  /// Retires every ticket of step `last_step` and earlier steps, and waits for their work. Work
  /// that failed is over too.
  Status retire_through(BlockManager& manager, std::uint64_t last_step);
  /// Retires every ticket of either kind whose work has completed, oldest first, and logs each.
  Status retire_completed(BlockManager& manager);
  /// Waits for the work of every ticket that has a stream, without retiring it. Returns the number
  /// of tickets without a stream.
  std::size_t wait_for_all();

 private:
  struct Fence {
    Ticket ticket;
    EventId event;  // 0: none
    std::uint64_t step;
  };
  explicit TicketEvents(Device& device) noexcept : device_(&device) {}
  Result<Fence> make(BlockManager& manager, StreamId stream);
  Status retire(BlockManager& manager, const Fence& fence);
  Status retire_completed(BlockManager& manager, std::vector<Fence>& fences);

  Device* device_;
  std::vector<EventId> free_events_;  // capacity reserved at create
  std::vector<Fence> of_steps_;       // capacity reserved at create, oldest first
  std::vector<Fence> open_;           // the same
};

}  // namespace kvarena
