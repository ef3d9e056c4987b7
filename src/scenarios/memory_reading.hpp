#pragma once

/// @file
/// `MemoryReading`: what the tracker, the driver and the operating system say of memory at one
/// moment, side by side. Plain values.

#include "scenarios/scenario_report.hpp"

#include "kvarena/device/device.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvarena::replay::pressure {

/// Bytes at one moment.
struct MemoryReading {
  std::int64_t tracked = 0;               ///< kind device, all purposes
  std::int64_t weights = 0;               ///< tracked as ModelWeights
  std::int64_t kv_cache = 0;              ///< tracked as KVCache
  std::int64_t buffers = 0;               ///< tracked as IntermediateBuffers
  std::int64_t driver_free = 0;           ///< Device::memory_info
  std::int64_t driver_used = 0;           ///< the same: total - free
  std::int64_t resident = 0;              ///< of this process, in the machine's memory
  std::optional<std::int64_t> nvml_used;  ///< as nvidia-smi shows it; none without NVML
};

/// Reads all of it. Waits for nothing. Returns what Device::memory_info returns.
Result<MemoryReading> read_memory(const Device& device);

/// A table of readings, one row each, in the order of `add`. NVML has a column when the first
/// reading has its figure.
class MemoryTable {
 public:
  /// `first_columns` name what tells the rows apart, e.g. "tokens".
  explicit MemoryTable(std::vector<std::string> first_columns);
  /// Adds a row; `firsts` are the values of the first columns.
  void add(std::vector<std::int64_t> firsts, const MemoryReading& reading);
  /// Reads the memory now, and adds that. Returns what read_memory returns.
  Status read(std::vector<std::int64_t> firsts, const Device& device);
  /// The table so far.
  const FigureTable& table() const noexcept { return table_; }

 private:
  FigureTable table_;
  bool has_nvml_ = false;
};

}  // namespace kvarena::replay::pressure
