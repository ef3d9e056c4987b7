#pragma once

/// @file
/// `TicketEvents`: which event stands for which ticket. There are two kinds of tickets. A step's
/// (`fence`) retires at a step that the history of calls decides, which waits for its work if need
/// be. An open one (`open`) is retired by the engine, and nothing waits for it. One thread at a
/// time; owns its events.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// In `required` of the failed_precondition (ticket) that says why a ticket was not retired.
inline constexpr std::uint64_t kTicketOfStep = 1;
inline constexpr std::uint64_t kTicketAtWork = 2;

/// Tickets in the order of issue, each with its event and the step it was opened in.
class TicketEvents {
 public:
  /// Returns what Device::create_event returns; exhausted (host_memory).
  static Result<TicketEvents> create(Device& device, std::int32_t max_open);
  ~TicketEvents();
  TicketEvents(TicketEvents&& other) noexcept;
  TicketEvents& operator=(TicketEvents&&) = delete;

  /// A step's ticket for the work queued on `stream` so far. Returns exhausted (ticket), or what
  /// Device::record returns; nothing is left open then.
  Result<Ticket> fence(BlockManager& manager, StreamId stream, std::uint64_t step);
  /// An open ticket for the work queued on `stream` so far. Returns as fence.
  Result<Ticket> open(BlockManager& manager, StreamId stream);
  /// An open ticket for work that no stream knows. Returns exhausted (ticket).
  Result<Ticket> open(BlockManager& manager);
  /// Retires an open ticket. Returns not_found (ticket), failed_precondition (ticket) for a step's
  /// ticket and while the stream has not completed its work. O(open tickets).
  Status retire(BlockManager& manager, Ticket ticket);

  /// Tickets of steps that have not retired.
  std::int64_t num_of_steps() const noexcept { return std::ssize(of_steps_); }
  /// Retires every step's ticket of step `last_step` or before, waiting for its work; work that
  /// failed is over too.
  Status retire_through(BlockManager& manager, std::uint64_t last_step);
  /// Retires every ticket of either kind whose work has completed, oldest first, and logs each.
  Status retire_completed(BlockManager& manager);
  /// Waits for the work of every ticket that has a stream, retiring none. How many have none.
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
