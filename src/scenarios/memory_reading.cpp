#include "scenarios/memory_reading.hpp"

#include "kvarena/device/memory_drift.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace kvarena::scenarios {
namespace {

std::int64_t bytes_for(const MemoryBreakdown& breakdown, MemoryPurpose purpose) {
  return static_cast<std::int64_t>(breakdown.by_purpose[static_cast<std::size_t>(purpose)].bytes);
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  if (!(file >> total_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

ProcessMemory read_process_memory() {
  ProcessMemory memory;
#ifdef __GLIBC__
  // glibc raises its mmap threshold when a large block is freed, and keeps such blocks from then
  // on.
  ::malloc_trim(0);
#if __GLIBC_PREREQ(2, 33)
  const struct mallinfo2 heap = ::mallinfo2();
  memory.heap_in_use = static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
#endif
#endif
  memory.resident = resident_bytes();
  return memory;
}

std::int64_t growth_per_cycle(std::span<const std::int64_t> values) noexcept {
  const std::size_t third = std::max<std::size_t>(values.size() / 3, 1);
  if (values.size() <= third) return 0;
  const std::size_t last = values.size() - third;
  const std::size_t middle = std::min(third, last - 1);
  const auto least = [values, third](std::size_t begin) {
    return std::ranges::min(values.subspan(begin, third));
  };
  return (least(last) - least(middle)) / static_cast<std::int64_t>(last - middle);
}

void ProcessGrowth::add(const ProcessMemory& memory) {
  resident_.push_back(memory.resident);
  heap_.push_back(memory.heap_in_use);
}

void ProcessGrowth::conclude(ScenarioReport& report, const std::string& kind,
                             std::optional<std::int64_t> most_bytes) const {
  const auto add = [&](const char* what, const char* figure, const std::vector<std::int64_t>& v) {
    const std::int64_t growth = growth_per_cycle(v);
    report.add(fmt::format("{}_{}_growth_bytes", kind, figure),
               v.empty() ? 0 : v.back() - v.front());
    report.add(fmt::format("{}_{}_bytes_per_cycle", kind, figure), growth);
    if (!most_bytes) return;
    report.expect_at_most(fmt::format("{}, {} that go on growing, bytes a cycle", kind, what),
                          *most_bytes, growth);
  };
  add("resident bytes of the process", "resident", resident_);
  add("bytes in use of the process's heap", "heap", heap_);
}

Result<MemoryReading> read_memory(const Device& device) {
  const MemoryBreakdown breakdown = device.tracker().breakdown();
  const Result<MemoryInfo> driver = device.memory_info();
  if (!driver) return driver.status();
  std::optional<std::int64_t> nvml_used;
  if (const Result<NvmlMemory> nvml = nvml_memory(device)) {
    nvml_used = static_cast<std::int64_t>(nvml->used_bytes);
  }
  return MemoryReading{
      .tracked = static_cast<std::int64_t>(breakdown.total.bytes),
      .weights = bytes_for(breakdown, MemoryPurpose::model_weights),
      .kv_cache = bytes_for(breakdown, MemoryPurpose::kv_cache),
      .buffers = bytes_for(breakdown, MemoryPurpose::intermediate_buffers),
      .driver_free = static_cast<std::int64_t>(driver->free_bytes),
      .driver_used = static_cast<std::int64_t>(driver->total_bytes - driver->free_bytes),
      .process = read_process_memory(),
      .nvml_used = nvml_used};
}

MemoryTable::MemoryTable(std::vector<std::string> first_columns) {
  table_.columns = std::move(first_columns);
  for (const char* column :
       {"tracked_bytes", "weights_bytes", "kv_cache_bytes", "buffers_bytes", "driver_used_bytes",
        "driver_free_bytes", "process_rss_bytes", "process_heap_bytes"}) {
    table_.columns.emplace_back(column);
  }
}

MaybeFailure MemoryTable::read(std::vector<std::int64_t> firsts, const Device& device) {
  const Result<MemoryReading> reading = read_memory(device);
  if (!reading) return unexpected("memory_info", reading.status());
  add(std::move(firsts), *reading);
  return std::nullopt;
}

void MemoryTable::add(std::vector<std::int64_t> firsts, const MemoryReading& r) {
  if (table_.rows.empty() && r.nvml_used) {
    has_nvml_ = true;
    table_.columns.emplace_back("nvml_used_bytes");
  }
  std::vector<std::int64_t>& row = table_.rows.emplace_back(std::move(firsts));
  for (const std::int64_t bytes : {r.tracked, r.weights, r.kv_cache, r.buffers, r.driver_used,
                                   r.driver_free, r.process.resident, r.process.heap_in_use}) {
    row.push_back(bytes);
  }
  if (has_nvml_) row.push_back(r.nvml_used.value_or(0));
}

void MemoryTable::fold(std::int64_t cycle, const MemoryReading& reading) {
  constexpr std::ptrdiff_t kFirst = 2;
  constexpr std::ptrdiff_t kProcess = kFirst + 6;
  add({cycle, 1}, reading);
  if (table_.rows.size() < 2) return;
  const auto before = table_.rows.end() - 2;
  std::vector<std::int64_t>& row = table_.rows.back();
  if (!std::equal(row.begin() + kFirst, row.begin() + kProcess, before->begin() + kFirst)) return;
  row[0] = (*before)[0];
  row[1] = (*before)[1] + 1;
  table_.rows.erase(before);
}

Result<MemoryBalance> read_balance(const Device& device) {
  const MemoryBreakdown breakdown = device.tracker().breakdown();
  const Result<MemoryInfo> driver = device.memory_info();
  if (!driver) return driver.status();
  return MemoryBalance{
      .driver_free = static_cast<std::int64_t>(driver->free_bytes),
      .tracked = static_cast<std::int64_t>(breakdown.total.bytes),
      .staging = static_cast<std::int64_t>(breakdown.staging.bytes),
      .allocations = static_cast<std::int64_t>(breakdown.total.count + breakdown.staging.count)};
}

void expect_same(ScenarioReport& report, std::string_view when, const MemoryBalance& before,
                 const MemoryBalance& after, std::int64_t tolerance_bytes) {
  const auto name = [when](const char* what) { return fmt::format("{}: {}", when, what); };
  if (tolerance_bytes == 0) {
    report.expect_equal(name("free bytes, by the driver"), before.driver_free, after.driver_free);
  } else {
    report.expect_at_most(name("change of free bytes, by the driver"), tolerance_bytes,
                          std::abs(after.driver_free - before.driver_free));
  }
  report.expect_equal(name("tracked bytes"), before.tracked, after.tracked);
  report.expect_equal(name("tracked staging bytes"), before.staging, after.staging);
  report.expect_equal(name("tracked allocations"), before.allocations, after.allocations);
}

MaybeFailure expect_refused(ScenarioReport& report, const Device& device,
                            const ExpectedRefusal& expected, const std::function<Status()>& call) {
  const Result<MemoryBalance> before = read_balance(device);
  if (!before) return unexpected("memory_info", before.status());
  const Status status = call();
  const Result<MemoryBalance> after = read_balance(device);
  if (!after) return unexpected("memory_info", after.status());
  const auto required = static_cast<std::int64_t>(status.required);
  const auto available = static_cast<std::int64_t>(status.available);
  report.add(expected.name + "_required_bytes", required);
  report.add(expected.name + "_available_bytes", available);
  report.add(expected.name + "_driver_free_bytes", before->driver_free);
  const auto name = [&expected](const char* what) {
    return fmt::format("{}: {}", expected.name, what);
  };
  report.expect_same(name("refused with"), std::string(name_of(StatusCode::insufficient_vram)),
                     std::string(name_of(status.code)));
  report.expect_equal(name("bytes required"), expected.required_bytes, required);
  const auto [least, most] = std::minmax(before->driver_free, after->driver_free);
  const std::int64_t low = least - expected.held_bytes - expected.tolerance_bytes;
  const std::int64_t high = most - expected.held_bytes + expected.tolerance_bytes;
  report.expect(name("bytes available, as the driver says"), fmt::format("{} to {}", low, high),
                fmt::format("{}", available), low <= available && available <= high);
  report.expect_at_most(name("bytes available, where less than required"), required - 1, available);
  expect_same(report, expected.name, *before, *after, expected.tolerance_bytes);
  return std::nullopt;
}

}  // namespace kvarena::scenarios
