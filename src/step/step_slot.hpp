#pragma once

/// @file
/// `StepSlot`: the data that the work of a step reads on the host device: a copy of the batch's
/// tables, lengths, slots and copy lists. With it later steps can be prepared while the work runs.
/// All memory is sized at construction.

#include "base/lazy_array.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "step/step_ring.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// The copy of one step. The views stay valid until the next capture.
struct StepSlot {
  /// Allocates the arrays, with `lead` entries in front of the rows. Throws std::bad_alloc.
  explicit StepSlot(const StepLimits& limits, std::int64_t lead = 0);

  LazyArray<SequenceId> sequences;      // [max_rows]
  LazyArray<BlockId> entries;           // [lead + max_blocks] the rows one behind another
  LazyArray<std::int64_t> row_offsets;  // [max_rows]
  LazyArray<std::int32_t> row_slots;  // [max_rows] the same; -1 where it does not fit into an int32
  LazyArray<std::int32_t> seq_lens;   // [max_rows]
  LazyArray<std::int32_t> num_blocks;  // [max_rows]
  LazyArray<std::int64_t> q_offsets;   // [max_rows + 1]
  LazyArray<std::int64_t> slots;       // [max_tokens]
  LazyArray<BlockCopy> copies;         // [max_rows]
  std::int32_t num_rows = 0;
  std::int64_t num_tokens = 0;
  std::size_t num_copies = 0;

  /// Returns the batch for attention, with contiguous rows.
  BatchView batch() const noexcept;
};

/// Copies the result of an append, and the tables of its sequences, into `slot`. The caller has
/// checked the limits. Returns not_found when a sequence does not exist any more.
Status capture_step(StepSlot& slot, BlockTables& tables, std::span<const AppendDemand> demands,
                    const AppendResult& appended);

}  // namespace kvarena
