#pragma once

/// @file
/// `TicketEvents`: which event stands for which ticket, so that a ticket retires when the work it
/// stands for has completed, at a step that the history of calls decides. One thread at a time;
/// owns its events.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// Open tickets in the order of issue, each with its event and the step it was opened in.
class TicketEvents {
 public:
  /// Returns what Device::create_event returns.
  static Result<TicketEvents> create(Device& device, std::int32_t max_open);
  ~TicketEvents();
  TicketEvents(TicketEvents&& other) noexcept;
  TicketEvents& operator=(TicketEvents&&) = delete;

  /// Opens a ticket for the work queued on `stream` so far. Returns exhausted (ticket), or what
  /// Device::record returns; nothing is left open then.
  Result<Ticket> fence(BlockManager& manager, StreamId stream, std::uint64_t step);
  /// Retires every ticket opened in step `last_step` or before, waiting for its work; work that
  /// failed is over too.
  Status retire_through(BlockManager& manager, std::uint64_t last_step);
  /// Retires every ticket whose work has completed, oldest first, and logs each.
  Status retire_completed(BlockManager& manager);
  /// Waits for the work of every open ticket, retiring none.
  void wait_for_all();

 private:
  struct Fence {
    Ticket ticket;
    EventId event;
    std::uint64_t step;
  };
  explicit TicketEvents(Device& device) noexcept : device_(&device) {}
  Status retire_at(BlockManager& manager, std::size_t index);

  Device* device_;
  std::vector<EventId> free_events_;  // capacity reserved at create
  std::vector<Fence> fences_;         // capacity reserved at create, oldest first
};

}  // namespace kvarena
