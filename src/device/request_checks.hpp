#pragma once

/// @file
/// Checks that every device makes before it allocates or queues. Pure functions.

#include "kvarena/device/device.hpp"

#include <limits>
#include <vector>

namespace kvarena {

inline constexpr std::uint64_t kMaxAlignmentBytes = 4096;  ///< the largest alignment of a request
/// The most bytes of one request. It leaves room for rounding in 64 bits.
inline constexpr std::uint64_t kMaxAllocationBytes = std::uint64_t{1} << 48;

/// The error for nullptr where memory is needed.
constexpr Status null_pointer() noexcept {
  return invalid_argument(Resource::pointer, 0, 1, std::numeric_limits<std::int64_t>::max());
}
/// Returns the tracker's record of `pointer`, which a device allocated for `request`.
AllocationRecord record_of(void* pointer, const AllocationRequest& request);
/// Returns the allocations that a device frees when it is destroyed: its own, not the engine's.
std::vector<AllocationRecord> leaked_allocations(const VramTracker& tracker) noexcept;
/// Returns invalid_argument (kind, purpose) for a value that is not an enumerator.
Status check_use(MemoryKind kind, MemoryPurpose purpose) noexcept;
/// Returns invalid_argument (bytes) for bytes outside 1 .. kMaxAllocationBytes, invalid_argument
/// (alignment_bytes) unless it is a power of two up to kMaxAlignmentBytes, unsupported (allocation)
/// for KV or weights in pinned_staging memory, or what check_use returns.
Status check_request(const AllocationRequest& request) noexcept;
/// Returns invalid_argument (pointer) for nullptr, or invalid_argument (span_size) for 0 bytes or
/// more than the address space has behind `pointer`.
Status check_range(const void* pointer, std::uint64_t bytes) noexcept;
/// Returns invalid_argument (pointer) for nullptr when there is something to copy, or
/// invalid_argument (span_size) for ranges that overlap. The distance between the ranges is then
/// the largest size that can be copied.
Status check_copy(const void* target, const void* source, std::uint64_t bytes) noexcept;
/// Returns invalid_argument (pointer) for nullptr when there is something to fill, or (span_size)
/// for more bytes than an allocation has.
Status check_fill(const void* target, std::uint64_t bytes) noexcept;

}  // namespace kvarena
