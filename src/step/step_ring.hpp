#pragma once

/// @file
/// `StepRing`: the events that mark the ends of the last k steps, and the one with which a step
/// waits for a step on another stream. With them, memory that the work of a step reads is
/// overwritten only after that work. One thread at a time. It owns its events.

#include "kvarena/base/result.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// The largest step.
struct StepLimits {
  std::int32_t steps_in_flight = 2;  ///< slots
  std::int32_t max_rows = 0;         ///< sequences
  std::int64_t max_tokens = 0;       ///< new tokens
  std::int64_t max_blocks = 0;       ///< entries of all rows in one table
};

/// k slots used in turn.
class StepRing {
 public:
  /// Makes the events. Returns what Device::create_event returns, or exhausted (host_memory).
  static Result<StepRing> create(Device& device, std::int32_t steps_in_flight);
  ~StepRing();
  StepRing(StepRing&& other) noexcept;
  StepRing& operator=(StepRing&&) = delete;

  std::size_t size() const noexcept { return done_.size(); }
  /// The index of the slot of step `step`.
  std::size_t index_of(std::uint64_t step) const noexcept { return step % done_.size(); }
  /// Waits until the work that used the slot last has completed, even if it failed.
  Status wait(std::size_t index);
  /// Returns whether the work that used the slot last has completed, or its failure.
  Result<bool> is_complete(std::size_t index);
  /// Marks the end of the work on `stream` that uses the slot. A stream that was destroyed has no
  /// work left.
  Status mark(std::size_t index, StreamId stream);
  /// Makes later work on `to` wait for all work that is on `from` now. Returns not_found (stream)
  /// for `to`. A stream `from` that was destroyed has no work left.
  Status pass(StreamId from, StreamId to);

 private:
  explicit StepRing(Device& device) noexcept : device_(&device) {}

  Device* device_;
  std::vector<EventId> done_;
  EventId passed_{};  // recorded by pass
};

}  // namespace kvarena
