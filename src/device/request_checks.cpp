#include "device/request_checks.hpp"

#include <bit>

namespace kvarena {

Status check_request(const AllocationRequest& request) noexcept {
  if (request.bytes < 1 || request.bytes > kMaxAllocationBytes) {
    return invalid_argument(Resource::pool_bytes, static_cast<std::int64_t>(request.bytes), 1,
                            static_cast<std::int64_t>(kMaxAllocationBytes));
  }
  if (!std::has_single_bit(request.alignment_bytes) ||
      request.alignment_bytes > kMaxAlignmentBytes) {
    return invalid_argument(Resource::alignment, static_cast<std::int64_t>(request.alignment_bytes),
                            1, static_cast<std::int64_t>(kMaxAlignmentBytes));
  }
  if (request.kind == MemoryKind::pinned_staging && request.purpose == MemoryPurpose::kv_cache) {
    return unsupported(Resource::allocation);
  }
  return {};
}

Status check_copy(const void* target, const void* source, std::uint64_t bytes) noexcept {
  if (bytes == 0) return {};
  if (target == nullptr || source == nullptr) return null_pointer();
  const auto to = reinterpret_cast<std::uintptr_t>(target);
  const auto from = reinterpret_cast<std::uintptr_t>(source);
  const std::uintptr_t distance = to < from ? from - to : to - from;
  if (distance < bytes) {
    return invalid_argument(Resource::span_size, static_cast<std::int64_t>(bytes), 0,
                            static_cast<std::int64_t>(distance));
  }
  return {};
}

Status check_fill(const void* target, std::uint64_t bytes) noexcept {
  return bytes > 0 && target == nullptr ? null_pointer() : Status{};
}

}  // namespace kvarena
