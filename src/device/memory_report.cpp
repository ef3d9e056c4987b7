#include "device/memory_report.hpp"

#include "base/out_of_memory.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <new>
#include <vector>

namespace kvarena {
namespace {

/// Returns "256.00 MiB" or "17 B".
std::string short_bytes(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double amount = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  while (amount >= 1024.0 && unit + 1 < kUnits.size()) {
    amount /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.2f} {}", amount, kUnits[unit]);
}

/// One line of the table.
std::string usage_line(std::string_view label, const MemoryUsage& usage, std::uint64_t whole) {
  const double share =
      whole == 0 ? 0.0 : 100.0 * static_cast<double>(usage.bytes) / static_cast<double>(whole);
  return fmt::format("{:<20} {:>18} {:>12} {:>6.1f}% {:>7} {:>12}\n", label, usage.bytes,
                     short_bytes(usage.bytes), share, usage.count, short_bytes(usage.peak_bytes));
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  return fmt::format("{} bytes ({})", bytes, short_bytes(bytes));
}

std::string to_string(const MemoryBreakdown& breakdown) noexcept try {
  std::string text = fmt::format("{:<20} {:>18} {:>12} {:>7} {:>7} {:>12}\n", "purpose", "bytes",
                                 "", "share", "count", "peak");
  for (std::size_t i = 0; i < kNumMemoryPurposes; ++i) {
    text += usage_line(name_of(static_cast<MemoryPurpose>(i)), breakdown.by_purpose[i],
                       breakdown.total.bytes);
  }
  text += usage_line("total", breakdown.total, breakdown.total.bytes);
  if (breakdown.staging.peak_bytes > 0) {
    text +=
        usage_line(name_of(MemoryKind::pinned_staging), breakdown.staging, breakdown.staging.bytes);
  }
  return text;
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

std::string reported_totals(std::span<const ReportedTotal> totals) {
  std::string text = totals.empty() ? "" : "reported totals, without an address to verify:\n";
  for (const ReportedTotal& total : totals) {
    text += fmt::format("  {:>18} {:>12}  {} \"{}\"\n", total.bytes, short_bytes(total.bytes),
                        name_of(total.purpose), total.name);
  }
  return text;
}

std::string largest_allocations(std::span<const AllocationRecord> allocations,
                                std::size_t max_allocations) {
  std::vector<const AllocationRecord*> order;
  order.reserve(allocations.size());
  for (const AllocationRecord& record : allocations) order.push_back(&record);
  // The sort is stable, so that equal sizes stay in address order.
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  const std::size_t shown = std::min(max_allocations, order.size());
  if (shown == 0) return {};
  std::string text = fmt::format("largest {} of {} allocations:\n", shown, order.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const AllocationRecord& record = *order[i];
    const bool is_engines = record.owner == AllocationOwner::engine;
    text +=
        fmt::format("  {} {:>18} {:>12}  {} {} \"{}\"{}\n", fmt::ptr(record.pointer), record.bytes,
                    short_bytes(record.bytes), name_of(record.purpose), name_of(record.kind),
                    record.description, is_engines ? ", the engine's" : "");
  }
  return text;
}

std::string leak_report(std::string_view device, std::span<const AllocationRecord> leaked) {
  std::uint64_t bytes = 0;
  for (const AllocationRecord& record : leaked) bytes += record.bytes;
  return fmt::format("device {} destroyed with {} in {} allocations not freed; {}", device,
                     bytes_text(bytes), leaked.size(), largest_allocations(leaked, leaked.size()));
}

}  // namespace kvarena
