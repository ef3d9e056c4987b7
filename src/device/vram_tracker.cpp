#include "kvarena/device/vram_tracker.hpp"

#include "base/log_internal.hpp"
#include "device/memory_report.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::uintptr_t address_of(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

void add(MemoryUsage& usage, std::uint64_t bytes) noexcept {
  usage.bytes += bytes;
  usage.count += 1;
  usage.peak_bytes = std::max(usage.peak_bytes, usage.bytes);
}

void subtract(MemoryUsage& usage, std::uint64_t bytes) noexcept {
  usage.bytes -= bytes;
  usage.count -= 1;
}

void log_change(const char* change, const AllocationRecord& record, const MemoryBreakdown& now) {
  log_line(LogLevel::debug,
           "memory {} {} {} {} \"{}\" at {}; total {} in {} allocations, staging {}", change,
           bytes_text(record.bytes), name_of(record.purpose), name_of(record.kind),
           record.description, fmt::ptr(record.pointer), bytes_text(now.total.bytes),
           now.total.count, bytes_text(now.staging.bytes));
}

}  // namespace

std::string_view name_of(MemoryPurpose purpose) noexcept {
  switch (purpose) {
    case MemoryPurpose::model_weights: return "ModelWeights";
    case MemoryPurpose::kv_cache: return "KVCache";
    case MemoryPurpose::intermediate_buffers: return "IntermediateBuffers";
    case MemoryPurpose::unknown: break;
  }
  return "Unknown";
}

std::string_view name_of(MemoryKind kind) noexcept {
  return kind == MemoryKind::device ? "device" : "pinned_staging";
}

/// Recorded ranges never overlap, so the map's order by first byte is also the order by last byte.
struct VramTracker::Impl {
  using Records = std::map<std::uintptr_t, AllocationRecord>;

  mutable std::mutex mutex;
  Records records;  // by address of the first byte
  MemoryBreakdown usage;

  /// The record whose range contains `address`, or end.
  Records::const_iterator containing(std::uintptr_t address) const {
    auto it = records.upper_bound(address);
    if (it == records.begin()) return records.end();
    --it;
    return address - it->first < it->second.bytes ? it : records.end();
  }
  /// Whether [first, first + bytes) shares a byte with a recorded range.
  bool overlaps(std::uintptr_t first, std::uint64_t bytes) const {
    const auto next = records.lower_bound(first);
    if (next != records.end() && next->first - first < bytes) return true;
    return containing(first) != records.end();
  }
  std::vector<AllocationRecord> list() const {
    std::vector<AllocationRecord> all;
    all.reserve(records.size());
    for (const auto& [address, record] : records) all.push_back(record);
    return all;
  }
  /// The accounts that a record counts in: those of its kind.
  template <class Change>
  void change_usage(const AllocationRecord& record, Change change) {
    if (record.kind == MemoryKind::pinned_staging) {
      change(usage.staging, record.bytes);
      return;
    }
    change(usage.total, record.bytes);
    change(usage.by_purpose[static_cast<std::size_t>(record.purpose)], record.bytes);
  }
};

VramTracker::VramTracker() : impl_(std::make_unique<Impl>()) {}
VramTracker::~VramTracker() = default;
VramTracker::VramTracker(VramTracker&&) noexcept = default;
VramTracker& VramTracker::operator=(VramTracker&&) noexcept = default;

Status VramTracker::record(AllocationRecord record) {
  const std::uintptr_t first = address_of(record.pointer);
  if (record.pointer == nullptr) return invalid_argument(Resource::pointer, 0, 1, kMost);
  if (record.bytes < 1 || record.bytes > static_cast<std::uint64_t>(kMost) ||
      record.bytes > std::numeric_limits<std::uintptr_t>::max() - first) {
    return invalid_argument(Resource::pool_bytes, static_cast<std::int64_t>(record.bytes), 1,
                            kMost);
  }
  const bool logging = log_enabled(LogLevel::debug);
  const AllocationRecord logged = logging ? record : AllocationRecord{};
  MemoryBreakdown now;
  {
    const std::scoped_lock lock(impl_->mutex);
    if (impl_->overlaps(first, record.bytes)) {
      return failed_precondition(Resource::allocation, first);
    }
    const auto it = impl_->records.emplace(first, std::move(record)).first;
    impl_->change_usage(it->second, add);
    impl_->usage.allocations_ever += 1;
    now = impl_->usage;
  }
  if (logging) log_change("allocated", logged, now);
  return {};
}

Result<AllocationRecord> VramTracker::erase(void* pointer) {
  AllocationRecord erased;
  MemoryBreakdown now;
  {
    const std::scoped_lock lock(impl_->mutex);
    const auto it = impl_->records.find(address_of(pointer));
    if (it == impl_->records.end()) return not_found(Resource::allocation, address_of(pointer));
    erased = std::move(it->second);
    impl_->records.erase(it);
    impl_->change_usage(erased, subtract);
    impl_->usage.frees_ever += 1;
    now = impl_->usage;
  }
  log_change("freed", erased, now);
  return erased;
}

MemoryBreakdown VramTracker::breakdown() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->usage;
}

std::vector<AllocationRecord> VramTracker::allocations() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->list();
}

Result<AllocationRecord> VramTracker::find(const void* pointer) const {
  const std::scoped_lock lock(impl_->mutex);
  const auto it = impl_->containing(address_of(pointer));
  if (it == impl_->records.end()) return not_found(Resource::allocation, address_of(pointer));
  return it->second;
}

std::string VramTracker::report(std::size_t max_allocations) const {
  std::vector<AllocationRecord> all;
  MemoryBreakdown usage;
  {
    // One lock for both, so that the table and the list are of the same instant.
    const std::scoped_lock lock(impl_->mutex);
    all = impl_->list();
    usage = impl_->usage;
  }
  return to_string(usage) + largest_allocations(all, max_allocations);
}

}  // namespace kvarena
