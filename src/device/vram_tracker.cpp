#include "kvarena/device/vram_tracker.hpp"

#include "base/excerpt.hpp"
#include "base/log_internal.hpp"
#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "device/memory_report.hpp"
#include "device/request_checks.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <new>
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

/// Returns "allocated" or "freed"; for an engine's memory, only the record is added or removed.
const char* change_of(const AllocationRecord& record, bool comes) noexcept {
  if (record.owner == AllocationOwner::engine) return comes ? "registered" : "unregistered";
  return comes ? "allocated" : "freed";
}

/// Logs one change with the new totals.
void log_change(const AllocationRecord& record, bool comes, const MemoryBreakdown& now) noexcept {
  log_made(LogLevel::debug, [&] {
    return fmt::format("memory {} {} {} {} \"{}\" at {}; total {} in {} allocations, staging {}",
                       change_of(record, comes), bytes_text(record.bytes), name_of(record.purpose),
                       name_of(record.kind), record.description, fmt::ptr(record.pointer),
                       bytes_text(now.total.bytes), now.total.count, bytes_text(now.staging.bytes));
  });
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

std::string_view name_of(AllocationOwner owner) noexcept {
  return owner == AllocationOwner::device ? "device" : "engine";
}

/// The state of a tracker. Recorded ranges never overlap, so the map's order by first byte is also
/// the order by last byte.
struct VramTracker::Impl {
  using Records = std::map<std::uintptr_t, AllocationRecord>;

  using Totals = std::map<std::string, ReportedTotal, std::less<>>;

  mutable std::mutex mutex;
  Records records;  // by address of the first byte
  Totals totals;    // by name
  std::uint64_t last_serial = 0;
  MemoryBreakdown usage;

  /// Returns the record whose range contains `address`, or end.
  Records::const_iterator containing(std::uintptr_t address) const {
    auto it = records.upper_bound(address);
    if (it == records.begin()) return records.end();
    --it;
    return address - it->first < it->second.bytes ? it : records.end();
  }
  /// Returns whether [first, first + bytes) shares a byte with a recorded range.
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
  std::vector<ReportedTotal> list_totals() const {
    std::vector<ReportedTotal> all;
    all.reserve(totals.size());
    for (const auto& [name, total] : totals) all.push_back(total);
    return all;
  }
  /// Changes the accounts in which a record counts: those of its kind.
  template <class Change>
  void change_usage(const AllocationRecord& record, Change change) {
    if (record.kind == MemoryKind::pinned_staging) {
      change(usage.staging, record.bytes);
      return;
    }
    change(usage.total, record.bytes);
    change(usage_of(record.purpose), record.bytes);
  }
  MemoryUsage& usage_of(MemoryPurpose purpose) {
    return usage.by_purpose[static_cast<std::size_t>(purpose)];
  }
  /// Replaces the bytes of `before` by those of `now` in one step, so that a changed total adds no
  /// false peak.
  void replace_total(const ReportedTotal& before, const ReportedTotal& now) {
    usage_of(before.purpose).bytes -= before.bytes;
    usage.total.bytes = usage.total.bytes - before.bytes + now.bytes;
    usage.reported_bytes = usage.reported_bytes - before.bytes + now.bytes;
    usage_of(now.purpose).bytes += now.bytes;
    for (MemoryUsage* changed : {&usage_of(now.purpose), &usage.total}) {
      changed->peak_bytes = std::max(changed->peak_bytes, changed->bytes);
    }
  }
};

VramTracker::VramTracker() : impl_(std::make_unique<Impl>()) {}
VramTracker::~VramTracker() = default;
VramTracker::VramTracker(VramTracker&&) noexcept = default;
VramTracker& VramTracker::operator=(VramTracker&&) noexcept = default;

/// The log line is written after the lock is released, from a copy of the record.
Status VramTracker::record(AllocationRecord record) try {
  if (Status s = check_use(record.kind, record.purpose); !s) return s;
  if (Status s = check_enum(Option::owner, record.owner, AllocationOwner::engine); !s) return s;
  if (!may_hold(record.kind, record.purpose)) return unsupported(Resource::allocation);
  const std::uintptr_t first = address_of(record.pointer);
  if (record.pointer == nullptr) return invalid_argument(Resource::pointer, 0, 1, kMost);
  if (record.bytes < 1 || record.bytes > static_cast<std::uint64_t>(kMost) ||
      record.bytes > std::numeric_limits<std::uintptr_t>::max() - first) {
    return invalid_option(Option::bytes, static_cast<std::int64_t>(record.bytes), 1, kMost);
  }
  record.description = printable(record.description);
  const bool logging = log_enabled(LogLevel::debug);
  const bool is_engines = record.owner == AllocationOwner::engine;
  const AllocationRecord logged = logging ? record : AllocationRecord{};
  MemoryBreakdown now;
  {
    const std::scoped_lock lock(impl_->mutex);
    if (impl_->overlaps(first, record.bytes)) {
      return failed_precondition(Resource::allocation, first);
    }
    const auto it = impl_->records.emplace(first, std::move(record)).first;
    it->second.serial = ++impl_->last_serial;
    impl_->change_usage(it->second, add);
    if (is_engines) impl_->usage.engine_bytes += it->second.bytes;
    impl_->usage.allocations_ever += 1;
    now = impl_->usage;
  }
  if (logging) log_change(logged, true, now);
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<AllocationRecord> VramTracker::erase(void* pointer, AllocationOwner owner) {
  AllocationRecord erased;
  MemoryBreakdown now;
  {
    const std::scoped_lock lock(impl_->mutex);
    const auto it = impl_->records.find(address_of(pointer));
    if (it == impl_->records.end()) return not_found(Resource::allocation, address_of(pointer));
    if (it->second.owner != owner) {
      return failed_precondition(Resource::allocation, address_of(pointer));
    }
    erased = std::move(it->second);
    impl_->records.erase(it);
    impl_->change_usage(erased, subtract);
    if (owner == AllocationOwner::engine) impl_->usage.engine_bytes -= erased.bytes;
    impl_->usage.frees_ever += 1;
    now = impl_->usage;
  }
  log_change(erased, false, now);
  return erased;
}

Status VramTracker::set_total(std::string_view given_name, MemoryPurpose purpose,
                              std::uint64_t bytes) try {
  if (Status s = check_use(MemoryKind::device, purpose); !s) return s;
  if (given_name.empty()) return invalid_argument(Resource::name, 0, 1, kMost);
  const std::string name = printable(given_name);
  const ReportedTotal after{name, purpose, bytes};
  MemoryBreakdown now;
  {
    const std::scoped_lock lock(impl_->mutex);
    const auto it = impl_->totals.find(name);
    const ReportedTotal before = it == impl_->totals.end() ? ReportedTotal{} : it->second;
    const std::uint64_t others = impl_->usage.total.bytes - before.bytes;
    const std::uint64_t most =
        static_cast<std::uint64_t>(kMost) - std::min<std::uint64_t>(others, kMost);
    if (bytes > most) {
      return invalid_argument(Resource::pool_bytes, static_cast<std::int64_t>(bytes), 0,
                              static_cast<std::int64_t>(most));
    }
    if (bytes > 0) {
      impl_->totals.insert_or_assign(after.name, after);
    } else if (it != impl_->totals.end()) {
      impl_->totals.erase(it);
    }
    impl_->replace_total(before, after);
    now = impl_->usage;
  }
  log_made(LogLevel::debug, [&] {
    return fmt::format("memory reported {} {} by \"{}\"; total {} in {} allocations, staging {}",
                       bytes_text(bytes), name_of(purpose), name, bytes_text(now.total.bytes),
                       now.total.count, bytes_text(now.staging.bytes));
  });
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

MemoryBreakdown VramTracker::breakdown() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->usage;
}

std::vector<AllocationRecord> VramTracker::allocations() const noexcept try {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->list();
} catch (const std::bad_alloc&) {
  return {};
}

std::vector<ReportedTotal> VramTracker::totals() const noexcept try {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->list_totals();
} catch (const std::bad_alloc&) {
  return {};
}

Result<AllocationRecord> VramTracker::find(const void* pointer) const try {
  const std::scoped_lock lock(impl_->mutex);
  const auto it = impl_->containing(address_of(pointer));
  if (it == impl_->records.end()) return not_found(Resource::allocation, address_of(pointer));
  return it->second;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

std::string VramTracker::report(std::size_t max_allocations) const noexcept try {
  std::vector<AllocationRecord> all;
  std::vector<ReportedTotal> totals;
  MemoryBreakdown usage;
  {
    // One lock covers all three, so that the table and the lists are of the same instant.
    const std::scoped_lock lock(impl_->mutex);
    all = impl_->list();
    totals = impl_->list_totals();
    usage = impl_->usage;
  }
  return to_string(usage) + reported_totals(totals) + largest_allocations(all, max_allocations);
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

}  // namespace kvarena
