#include "scenarios/memory_reading.hpp"

#include "scenarios/process_memory.hpp"

#include "kvarena/device/memory_drift.hpp"

#include <utility>

namespace kvarena::replay::pressure {
namespace {

std::int64_t bytes_for(const MemoryBreakdown& breakdown, MemoryPurpose purpose) {
  return static_cast<std::int64_t>(breakdown.by_purpose[static_cast<std::size_t>(purpose)].bytes);
}

}  // namespace

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
      .resident = resident_bytes(),
      .nvml_used = nvml_used};
}

MemoryTable::MemoryTable(std::vector<std::string> first_columns) {
  table_.columns = std::move(first_columns);
  for (const char* column : {"tracked_bytes", "weights_bytes", "kv_cache_bytes", "buffers_bytes",
                             "driver_used_bytes", "driver_free_bytes", "process_rss_bytes"}) {
    table_.columns.emplace_back(column);
  }
}

Status MemoryTable::read(std::vector<std::int64_t> firsts, const Device& device) {
  const Result<MemoryReading> reading = read_memory(device);
  if (reading) add(std::move(firsts), *reading);
  return reading.status();
}

void MemoryTable::add(std::vector<std::int64_t> firsts, const MemoryReading& r) {
  if (table_.rows.empty() && r.nvml_used) {
    has_nvml_ = true;
    table_.columns.emplace_back("nvml_used_bytes");
  }
  std::vector<std::int64_t>& row = table_.rows.emplace_back(std::move(firsts));
  for (const std::int64_t bytes :
       {r.tracked, r.weights, r.kv_cache, r.buffers, r.driver_used, r.driver_free, r.resident}) {
    row.push_back(bytes);
  }
  if (has_nvml_) row.push_back(r.nvml_used.value_or(0));
}

}  // namespace kvarena::replay::pressure
