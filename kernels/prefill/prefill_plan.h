#pragma once

/// @file
/// The plan of a step's prompts for the Hopper kernel: the rows in the order in which thread blocks
/// take their items. Sizes are pure
/// functions that need no CUDA. Long rows come first, so that short ones fill the end (longest
/// processing time first; Graham, 1969). A row is cut into sections of KV heads whose K and V stay
/// in the L2 while its query tokens pass. Up to kRowsWithoutPlan rows need no plan.

#include <cstdint>

namespace kvarena::kernels {

inline constexpr std::int32_t kPlanRows = 128;           ///< packed rows of an item
inline constexpr std::int32_t kRowsWithoutPlan = 32;     ///< rows that a warp orders by itself
inline constexpr std::int64_t kSectionBytes = 24 << 20;  ///< of K and V of a section of heads

/// A row of the batch.
struct alignas(16) PlanRow {
  std::int32_t first_item;     ///< of the row
  std::int32_t q_tiles;        ///< tiles of kPlanRows packed rows
  std::int32_t section_heads;  ///< KV heads of a section
  std::int32_t q_begin;        ///< first query token
  std::int32_t q_len;          ///< query tokens
  std::int32_t seq_len;        ///< tokens
  std::int64_t table;          ///< first entry in the block tables
};
static_assert(sizeof(PlanRow) == 32);

/// A plan. The rows follow it in memory.
struct alignas(32) PrefillPlan {
  std::int32_t num_items;
};

/// The counters of a launch. They are 0 before it and after it.
struct alignas(16) PrefillCounters {
  std::int32_t taken;  ///< items, besides the first of each thread block
  std::int32_t ended;  ///< thread blocks without further items
};

/// Bytes for PrefillCounters in a workspace.
inline constexpr std::int64_t kPrefillCounterBytes = 256;

/// Returns the bytes of a plan of `max_rows` rows: a pure function.
constexpr std::int64_t prefill_plan_bytes(std::int64_t max_rows) noexcept {
  return (static_cast<std::int64_t>(sizeof(PrefillPlan)) +
          max_rows * static_cast<std::int64_t>(sizeof(PlanRow)) + 255) /
         256 * 256;
}

}  // namespace kvarena::kernels
