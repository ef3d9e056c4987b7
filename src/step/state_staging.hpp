#pragma once

/// @file
/// `StateStaging`: the staging ring of one group of recurrent layers in GroupStaging, which says
/// when it is written. It knows no device. One thread at a time. No allocation.

#include "kernels/scatter_step/staged_states.h"
#include "kvarena/blocktable/block_tables.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// The slots of the steps in flight of a group of states.
class StateStaging {
 public:
  /// `ring`: steps_in_flight x slot_bytes zero bytes, 16-byte aligned, which outlive this.
  StateStaging(const kernels::StateShape& shape, std::byte* ring) noexcept
      : shape_(shape), ring_(ring) {}

  /// Whether the step's slots and extras fit. Returns limit_exceeded (num_sequences, num_tokens).
  Status check(const StateSlots& slots) const noexcept;
  /// Writes a step into ring slot `slot`: its slots, those of appended.copies that are of `table`,
  /// and last its serial number.
  void write(std::int32_t slot, const StateSlots& slots, const AppendResult& appended,
             std::int32_t table, std::uint64_t serial, std::uint64_t follows) noexcept;
  /// A later launch does not find the step in ring slot `slot`.
  void withdraw(std::int32_t slot) noexcept;
  /// The copies of the step that was written last.
  std::int32_t num_copies() const noexcept { return num_copies_; }

 private:
  std::byte* slot_of(std::int32_t slot) const noexcept {
    return ring_ + slot * shape_.slot_bytes();
  }

  kernels::StateShape shape_;
  std::byte* ring_;
  std::int32_t num_copies_ = 0;
};

}  // namespace kvarena
