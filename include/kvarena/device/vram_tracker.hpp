#pragma once

/// @file
/// `VramTracker`: the record of what a device's memory is used for. A Device records every
/// allocation here. Thread-safe: a report taken while other threads allocate is a consistent
/// snapshot. The tracker changes only when memory is allocated or freed, never for a block or a
/// token, so it is not on a hot path.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena {

/// What an allocation is for.
enum class MemoryPurpose : std::uint8_t { model_weights, kv_cache, intermediate_buffers, unknown };
inline constexpr std::size_t kNumMemoryPurposes = 4;  ///< number of MemoryPurpose values

/// The kind of memory that an allocation is and must stay.
enum class MemoryKind : std::uint8_t {
  device,          ///< device-local: VRAM, or the host device's own memory
  pinned_staging,  ///< page-locked host memory for transfers; never for KV or weights
};

/// Returns whether memory of `kind` may be allocated or registered for `purpose`. KV and weights
/// are never staging memory.
constexpr bool may_hold(MemoryKind kind, MemoryPurpose purpose) noexcept {
  return kind == MemoryKind::device ||
         (purpose != MemoryPurpose::kv_cache && purpose != MemoryPurpose::model_weights);
}
/// Returns "ModelWeights", "KVCache", "IntermediateBuffers" or "Unknown".
KVARENA_EXPORT std::string_view name_of(MemoryPurpose purpose) noexcept;
/// Returns "device" or "pinned_staging".
KVARENA_EXPORT std::string_view name_of(MemoryKind kind) noexcept;

/// Who frees an allocation.
enum class AllocationOwner : std::uint8_t {
  device,  ///< the Device that allocated it
  engine,  ///< the engine that registered it (register_memory in residency.hpp); kvarena never
           ///< frees it
};
/// Returns "device" or "engine".
KVARENA_EXPORT std::string_view name_of(AllocationOwner owner) noexcept;

/// One recorded allocation.
struct AllocationRecord {
  void* pointer = nullptr;                          ///< first byte
  std::uint64_t bytes = 0;                          ///< as asked for
  MemoryPurpose purpose = MemoryPurpose::unknown;   ///< what the memory is for
  MemoryKind kind = MemoryKind::device;             ///< which kind the memory must be
  std::string description;                          ///< for people; stored as one line
  AllocationOwner owner = AllocationOwner::device;  ///< who frees it
  /// The number of the record, from 1; VramTracker::record sets it. It tells an allocation from a
  /// later one at the same address.
  std::uint64_t serial = 0;
};

/// Bytes that another allocator reports: kind `device`, without an address to check.
struct ReportedTotal {
  std::string name;                                ///< of that allocator
  MemoryPurpose purpose = MemoryPurpose::unknown;  ///< what the memory is for
  std::uint64_t bytes = 0;                         ///< now
};

/// Count and bytes of one purpose, or of all purposes.
struct MemoryUsage {
  std::uint64_t bytes = 0;       ///< now, with reported totals
  std::uint64_t peak_bytes = 0;  ///< the most at any time
  std::uint64_t count = 0;       ///< allocations now; reported totals do not count
};

/// A consistent snapshot of a tracker.
struct MemoryBreakdown {
  MemoryUsage total;    ///< all purposes, kind `device`
  MemoryUsage staging;  ///< kind `pinned_staging`
  std::array<MemoryUsage, kNumMemoryPurposes>
      by_purpose;                      ///< indexed by MemoryPurpose, kind `device`
  std::uint64_t engine_bytes = 0;      ///< of both kinds: memory that the engine registered
  std::uint64_t reported_bytes = 0;    ///< the part of `total` that other allocators reported
  std::uint64_t allocations_ever = 0;  ///< recorded since the start, of both owners
  std::uint64_t frees_ever = 0;        ///< erased since the start
};

/// The record of one device's memory. Movable, not copyable. A tracker that was moved from may only
/// be assigned to or destroyed. Each change logs a line at level `debug` with the new totals.
class KVARENA_EXPORT VramTracker {
 public:
  VramTracker();
  ~VramTracker();
  VramTracker(VramTracker&&) noexcept;
  VramTracker& operator=(VramTracker&&) noexcept;

  /// Records an allocation. Returns unsupported (allocation) when may_hold is false. Returns
  /// invalid_argument (pointer) for nullptr, or invalid_argument (pool_bytes) for 0 bytes or for
  /// more than the address space has behind the pointer. Returns failed_precondition (allocation)
  /// when the pointer is recorded already or its range overlaps a recorded one. O(log n).
  Status record(AllocationRecord record);
  /// Erases an allocation and returns its record. Returns not_found (allocation) for a pointer that
  /// was never recorded or has been erased, and failed_precondition (allocation) for an allocation
  /// of another owner. Nothing changes then. O(log n).
  Result<AllocationRecord> erase(void* pointer, AllocationOwner owner = AllocationOwner::device);
  /// Sets how many bytes the allocator `name` holds now for `purpose`, in place of its earlier
  /// report; 0 removes the report. The bytes count as kind `device`. Returns invalid_argument
  /// (name) for an empty name, or invalid_argument (pool_bytes) when all bytes together would pass
  /// 2^63. O(log n).
  Status set_total(std::string_view name, MemoryPurpose purpose, std::uint64_t bytes);

  /// Returns the totals of now. O(1).
  MemoryBreakdown breakdown() const;
  /// Returns every recorded allocation, by address. Empty when there is no memory for the list.
  /// O(n).
  std::vector<AllocationRecord> allocations() const noexcept;
  /// Returns every reported total, by name. Empty when there is no memory for the list. O(n).
  std::vector<ReportedTotal> totals() const noexcept;
  /// Returns the allocation that contains `pointer`, or not_found. O(log n).
  Result<AllocationRecord> find(const void* pointer) const;
  /// Returns a table for people: a line for each purpose with bytes, share, count and peak, then
  /// the reported totals and the largest `max_allocations` allocations.
  std::string report(std::size_t max_allocations = 10) const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the same table for a snapshot, without the list of allocations.
KVARENA_EXPORT std::string to_string(const MemoryBreakdown& breakdown) noexcept;

}  // namespace kvarena
