#pragma once

/// @file
/// `StepRing`: what the work of a step reads while later steps are already being prepared: a copy
/// of the batch's tables and lengths, slots and copy lists, in one of k slots guarded by the event
/// that marks the step's end. One thread at a time; owns its events. All memory is sized at create.

#include "base/lazy_array.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena {

/// The largest step.
struct StepLimits {
  std::int32_t steps_in_flight = 2;  ///< slots
  std::int32_t max_rows = 0;         ///< sequences
  std::int64_t max_tokens = 0;       ///< new tokens
  std::int64_t max_blocks = 0;       ///< table entries of all rows
};

/// One step's copy. The views stay valid until the slot is reused, steps_in_flight steps later.
struct StepSlot {
  LazyArray<SequenceId> sequences;      // [max_rows]
  LazyArray<BlockId> entries;           // [max_blocks] rows end to end
  LazyArray<std::int64_t> row_offsets;  // [max_rows]
  LazyArray<std::int32_t> seq_lens;     // [max_rows]
  LazyArray<std::int32_t> num_blocks;   // [max_rows]
  LazyArray<std::int64_t> q_offsets;    // [max_rows + 1]
  LazyArray<std::int64_t> slots;        // [max_tokens]
  LazyArray<BlockCopy> copies;          // [max_rows]
  std::int32_t num_rows = 0;
  std::int64_t num_tokens = 0;
  std::size_t num_copies = 0;
  EventId done{};

  /// The batch as attention sees it: contiguous rows.
  BatchView batch() const noexcept;
};

/// k slots used in turn.
class StepRing {
 public:
  /// Returns what Device::create_event returns; exhausted (host_memory).
  static Result<StepRing> create(Device& device, const StepLimits& limits);
  ~StepRing();
  StepRing(StepRing&& other) noexcept;
  StepRing& operator=(StepRing&&) = delete;

  const StepLimits& limits() const noexcept { return limits_; }
  std::size_t size() const noexcept { return slots_.size(); }
  /// Index of the slot of step `step`.
  std::size_t index_of(std::uint64_t step) const noexcept { return step % slots_.size(); }
  StepSlot& slot(std::size_t index) noexcept { return slots_[index]; }
  /// Waits until the work that last used the slot has completed, even if it failed.
  Status wait(std::size_t index);
  /// Marks the end of the work on `stream` that uses the slot.
  Status mark(std::size_t index, StreamId stream);

 private:
  StepRing(Device& device, const StepLimits& limits) noexcept : device_(&device), limits_(limits) {}

  Device* device_;
  StepLimits limits_;
  std::vector<StepSlot> slots_;
};

/// Copies what an append gave, and the tables of its sequences, into `slot`. The caller has checked
/// the limits, so this fails only when a sequence vanished in between (not_found).
Status capture_step(StepSlot& slot, BlockTables& tables, std::span<const AppendDemand> demands,
                    const AppendResult& appended);

}  // namespace kvarena
