#pragma once

/// @file
/// `VramTracker`: what a device's memory is used for. Every allocation of a Device passes through
/// its tracker. Thread-safe: a report taken while other threads allocate is a consistent snapshot.
/// Not on any hot path: it is touched when memory is allocated or freed, never per block or token.

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

/// The kind of memory an allocation is, and therefore must stay.
enum class MemoryKind : std::uint8_t {
  device,          ///< device-local: VRAM, or the host device's own memory
  pinned_staging,  ///< page-locked host memory for transfers; never for KV or weights
};

/// Whether memory of `kind` may be asked for or registered for `purpose`: KV and weights are never
/// staging.
constexpr bool may_hold(MemoryKind kind, MemoryPurpose purpose) noexcept {
  return kind == MemoryKind::device ||
         (purpose != MemoryPurpose::kv_cache && purpose != MemoryPurpose::model_weights);
}
/// "ModelWeights", "KVCache", "IntermediateBuffers", "Unknown".
KVARENA_EXPORT std::string_view name_of(MemoryPurpose purpose) noexcept;
/// "device", "pinned_staging".
KVARENA_EXPORT std::string_view name_of(MemoryKind kind) noexcept;

/// Who frees an allocation.
enum class AllocationOwner : std::uint8_t {
  device,  ///< the Device that gave it out
  engine,  ///< whoever registered it (register_memory in residency.hpp); never freed here
};
/// "device", "engine".
KVARENA_EXPORT std::string_view name_of(AllocationOwner owner) noexcept;

/// One recorded allocation.
struct AllocationRecord {
  void* pointer = nullptr;                          ///< first byte
  std::uint64_t bytes = 0;                          ///< as asked for
  MemoryPurpose purpose = MemoryPurpose::unknown;   ///< what for
  MemoryKind kind = MemoryKind::device;             ///< what it must be
  std::string description;                          ///< for people; recorded in one line
  AllocationOwner owner = AllocationOwner::device;  ///< who frees it
  /// Counts a tracker's records from 1; given by VramTracker::record. Tells an allocation from a
  /// later one at the same address.
  std::uint64_t serial = 0;
};

/// What another allocator says it holds: bytes of kind `device` with no address to verify.
struct ReportedTotal {
  std::string name;                                ///< of that allocator
  MemoryPurpose purpose = MemoryPurpose::unknown;  ///< what for
  std::uint64_t bytes = 0;                         ///< now
};

/// Count and bytes of one purpose, or of all.
struct MemoryUsage {
  std::uint64_t bytes = 0;       ///< now, reported totals included
  std::uint64_t peak_bytes = 0;  ///< the most at any time
  std::uint64_t count = 0;       ///< allocations now; a reported total is none
};

/// A consistent snapshot of a tracker.
struct MemoryBreakdown {
  MemoryUsage total;    ///< all purposes, kind `device`
  MemoryUsage staging;  ///< kind `pinned_staging`
  std::array<MemoryUsage, kNumMemoryPurposes>
      by_purpose;                      ///< indexed by MemoryPurpose, kind `device`
  std::uint64_t engine_bytes = 0;      ///< of both kinds: registered by the engine
  std::uint64_t reported_bytes = 0;    ///< of `total`: reported totals
  std::uint64_t allocations_ever = 0;  ///< recorded since the start, by whichever owner
  std::uint64_t frees_ever = 0;        ///< erased since the start
};

/// The account of one device's memory. Movable, not copyable; one that was moved from may only be
/// assigned to or destroyed. Each change logs a line at `debug` with the new totals.
class KVARENA_EXPORT VramTracker {
 public:
  VramTracker();
  ~VramTracker();
  VramTracker(VramTracker&&) noexcept;
  VramTracker& operator=(VramTracker&&) noexcept;

  /// Records an allocation. Returns unsupported (allocation) for what may_hold denies,
  /// invalid_argument (pointer) for nullptr or (pool_bytes) for no bytes or more than the address
  /// space has behind the pointer, and failed_precondition (allocation) when that pointer is
  /// recorded already or its range overlaps a recorded one. O(log n).
  Status record(AllocationRecord record);
  /// Erases an allocation and returns what was recorded. Returns not_found (allocation) for a
  /// pointer that was never recorded or has been erased, or failed_precondition (allocation) for
  /// one of another owner: nothing changes. O(log n).
  Result<AllocationRecord> erase(void* pointer, AllocationOwner owner = AllocationOwner::device);
  /// What the allocator `name` holds now for `purpose`, in place of what it said before; 0 removes
  /// it. Counts as kind `device`. Returns invalid_argument (name) for an empty name, or
  /// (pool_bytes) when all bytes together would pass 2^63. O(log n).
  Status set_total(std::string_view name, MemoryPurpose purpose, std::uint64_t bytes);

  /// Totals now. O(1).
  MemoryBreakdown breakdown() const;
  /// Every recorded allocation, by address. Empty where there is no memory for the list. O(n).
  std::vector<AllocationRecord> allocations() const noexcept;
  /// Every reported total, by name. Empty where there is no memory for the list. O(n).
  std::vector<ReportedTotal> totals() const noexcept;
  /// The allocation that contains `pointer`, or not_found. O(log n).
  Result<AllocationRecord> find(const void* pointer) const;
  /// A table for people: a line per purpose with bytes, share, count and peak, then the reported
  /// totals and the largest `max_allocations` allocations.
  std::string report(std::size_t max_allocations = 10) const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The same table from a snapshot, without the list of allocations.
KVARENA_EXPORT std::string to_string(const MemoryBreakdown& breakdown) noexcept;

}  // namespace kvarena
