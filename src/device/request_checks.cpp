#include "device/request_checks.hpp"

#include "base/range_checks.hpp"

#include <bit>

namespace kvarena {

Status check_request(const AllocationRequest& request) noexcept {
  if (request.bytes < 1 || request.bytes > kMaxAllocationBytes) {
    return invalid_option(Option::bytes, static_cast<std::int64_t>(request.bytes), 1,
                          static_cast<std::int64_t>(kMaxAllocationBytes));
  }
  if (!std::has_single_bit(request.alignment_bytes) ||
      request.alignment_bytes > kMaxAlignmentBytes) {
    return invalid_option(Option::alignment_bytes,
                          static_cast<std::int64_t>(request.alignment_bytes), 1,
                          static_cast<std::int64_t>(kMaxAlignmentBytes));
  }
  if (Status s = check_use(request.kind, request.purpose); !s) return s;
  if (!may_hold(request.kind, request.purpose)) return unsupported(Resource::allocation);
  return {};
}

Status check_use(MemoryKind kind, MemoryPurpose purpose) noexcept {
  if (Status s = check_enum(Option::purpose, purpose, MemoryPurpose::unknown); !s) return s;
  return check_enum(Option::kind, kind, MemoryKind::pinned_staging);
}

AllocationRecord record_of(void* pointer, const AllocationRequest& request) {
  AllocationRecord record;
  record.pointer = pointer;
  record.bytes = request.bytes;
  record.purpose = request.purpose;
  record.kind = request.kind;
  record.description = request.description;
  return record;
}

std::vector<AllocationRecord> leaked_allocations(const VramTracker& tracker) noexcept {
  std::vector<AllocationRecord> leaked = tracker.allocations();
  std::erase_if(leaked, [](const AllocationRecord& record) {
    return record.owner != AllocationOwner::device;
  });
  return leaked;
}

Status check_range(const void* pointer, std::uint64_t bytes) noexcept {
  if (pointer == nullptr) return null_pointer();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::uint64_t behind =
      std::numeric_limits<std::uintptr_t>::max() - reinterpret_cast<std::uintptr_t>(pointer);
  if (bytes < 1 || bytes > static_cast<std::uint64_t>(kMost) || bytes > behind) {
    return invalid_argument(Resource::span_size, static_cast<std::int64_t>(bytes), 1, kMost);
  }
  return {};
}

/// Checks bytes of a copy or fill. More than an allocation can have would pass the end of memory.
static Status check_span(std::uint64_t bytes) noexcept {
  if (bytes <= kMaxAllocationBytes) return {};
  return invalid_argument(Resource::span_size, static_cast<std::int64_t>(bytes), 0,
                          static_cast<std::int64_t>(kMaxAllocationBytes));
}

Status check_copy(const void* target, const void* source, std::uint64_t bytes) noexcept {
  if (bytes == 0) return {};
  if (target == nullptr || source == nullptr) return null_pointer();
  const auto to = reinterpret_cast<std::uintptr_t>(target);
  const auto from = reinterpret_cast<std::uintptr_t>(source);
  if (Status s = check_span(bytes); !s) return s;
  const std::uintptr_t distance = to < from ? from - to : to - from;
  if (distance < bytes) {
    return invalid_argument(Resource::span_size, static_cast<std::int64_t>(bytes), 0,
                            static_cast<std::int64_t>(distance));
  }
  return {};
}

Status check_fill(const void* target, std::uint64_t bytes) noexcept {
  if (bytes > 0 && target == nullptr) return null_pointer();
  return check_span(bytes);
}

}  // namespace kvarena
