#pragma once

/// @file
/// `StateStep`: the slots of recurrent layers in one step on the host, kept while its work runs,
/// and the copies that its kernels need.

#include "base/lazy_array.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache_step.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvarena {

/// The most that a step has.
struct StateStepLimits {
  std::int32_t max_rows = 0;
  std::int64_t max_tokens = 0;
  std::int64_t checkpoint_every_tokens = 0;
};

/// A step's slots and copies of all groups of states.
class StateStep {
 public:
  StateStep(const GroupLayout& layout, const StateStepLimits& limits);

  /// Keeps what an append returned.
  void capture(const AppendResult& appended);
  /// The slots, in memory of this object.
  std::span<const StateSlots> slots() const noexcept { return views_; }
  /// The same, for kernels.
  std::span<const DeviceStateSlots> device_slots() const noexcept { return device_views_; }
  /// Makes the copies of the step: a part without a source is cleared.
  void run_copies(const GroupLayout& layout, std::byte* base) const noexcept;

 private:
  struct Memory {
    LazyArray<std::int32_t> read;
    LazyArray<std::int32_t> write;
    LazyArray<std::int32_t> extra_offsets;
    LazyArray<std::int32_t> extra_tokens;
    LazyArray<std::int32_t> extra_slots;
    LazyArray<BlockCopy> copies;
    std::size_t num_copies = 0;
  };
  std::vector<Memory> memory_;                  // by group of states
  std::vector<StateSlots> views_;               // the same
  std::vector<DeviceStateSlots> device_views_;  // the same
  std::int32_t first_table_;                    // tables of states come behind those of parts
};

}  // namespace kvarena
