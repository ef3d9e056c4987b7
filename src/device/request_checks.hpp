#pragma once

/// @file
/// The checks that every device makes before it allocates or queues. Pure.

#include "kvarena/device/device.hpp"

#include <limits>
#include <vector>

namespace kvarena {

inline constexpr std::uint64_t kMaxAlignmentBytes = 4096;  ///< the largest alignment of a request
/// The most that one request can ask for; leaves room for rounding in 64 bits.
inline constexpr std::uint64_t kMaxAllocationBytes = std::uint64_t{1} << 48;

/// nullptr was given where memory is needed.
constexpr Status null_pointer() noexcept {
  return invalid_argument(Resource::pointer, 0, 1, std::numeric_limits<std::int64_t>::max());
}
/// How a device records what it gave for `request`.
AllocationRecord record_of(void* pointer, const AllocationRequest& request);
/// What a device that goes away must free: its own, not the engine's.
std::vector<AllocationRecord> leaked_allocations(const VramTracker& tracker) noexcept;
/// Returns invalid_argument (kind, purpose) for what is none.
Status check_use(MemoryKind kind, MemoryPurpose purpose) noexcept;
/// Returns invalid_argument (bytes) for bytes outside 1 .. kMaxAllocationBytes,
/// invalid_argument (alignment_bytes) for anything but a power of two up to kMaxAlignmentBytes, and
/// unsupported (allocation) for KV or weights in pinned_staging memory, or as check_use.
Status check_request(const AllocationRequest& request) noexcept;
/// Returns invalid_argument (pointer) for nullptr, or (span_size) for no bytes or more than the
/// address space has behind `pointer`.
Status check_range(const void* pointer, std::uint64_t bytes) noexcept;
/// Returns invalid_argument (pointer) for nullptr when there is something to copy, or (span_size)
/// for ranges that overlap: at their distance at most that many bytes can be copied.
Status check_copy(const void* target, const void* source, std::uint64_t bytes) noexcept;
/// Returns invalid_argument (pointer) for nullptr when there is something to fill.
Status check_fill(const void* target, std::uint64_t bytes) noexcept;

}  // namespace kvarena
