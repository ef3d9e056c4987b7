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
  pinned_staging,  ///< page-locked host memory for transfers; may never hold KV
};

/// "ModelWeights", "KVCache", "IntermediateBuffers", "Unknown".
KVARENA_EXPORT std::string_view name_of(MemoryPurpose purpose) noexcept;
/// "device", "pinned_staging".
KVARENA_EXPORT std::string_view name_of(MemoryKind kind) noexcept;

/// One recorded allocation.
struct AllocationRecord {
  void* pointer = nullptr;                         ///< first byte
  std::uint64_t bytes = 0;                         ///< as asked for
  MemoryPurpose purpose = MemoryPurpose::unknown;  ///< what for
  MemoryKind kind = MemoryKind::device;            ///< what it must be
  std::string description;                         ///< for people
};

/// Count and bytes of one purpose, or of all.
struct MemoryUsage {
  std::uint64_t bytes = 0;       ///< now
  std::uint64_t peak_bytes = 0;  ///< the most at any time
  std::uint64_t count = 0;       ///< allocations now
};

/// A consistent snapshot of a tracker.
struct MemoryBreakdown {
  MemoryUsage total;    ///< all purposes, kind `device`
  MemoryUsage staging;  ///< kind `pinned_staging`
  std::array<MemoryUsage, kNumMemoryPurposes>
      by_purpose;                      ///< indexed by MemoryPurpose, kind `device`
  std::uint64_t allocations_ever = 0;  ///< recorded since the start
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

  /// Records an allocation. Returns invalid_argument (pointer) for nullptr or (pool_bytes) for no
  /// bytes or more than the address space has behind the pointer, and
  /// failed_precondition (allocation) when that pointer is recorded already or its range overlaps a
  /// recorded one. O(log n).
  Status record(AllocationRecord record);
  /// Erases an allocation and returns what was recorded. Returns not_found (allocation) for a
  /// pointer that was never recorded or has been erased: nothing changes. O(log n).
  Result<AllocationRecord> erase(void* pointer);

  /// Totals now. O(1).
  MemoryBreakdown breakdown() const;
  /// Every recorded allocation, by address. O(n).
  std::vector<AllocationRecord> allocations() const;
  /// The allocation that contains `pointer`, or not_found. O(log n).
  Result<AllocationRecord> find(const void* pointer) const;
  /// A table for people: a line per purpose with bytes, share, count and peak, then the largest
  /// `max_allocations` allocations.
  std::string report(std::size_t max_allocations = 10) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The same table from a snapshot, without the list of allocations.
KVARENA_EXPORT std::string to_string(const MemoryBreakdown& breakdown);

}  // namespace kvarena
