#pragma once

/// @file
/// `MemoryReading`: the memory at one moment, by the tracker, the driver and the operating system.
/// `ProcessGrowth`: the growth of this process. `MemoryBalance`: the figures that must be the same
/// again after all memory has been given back. Plain values and functions.

#include "scenarios/report.hpp"

#include "kvarena/device/device.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::scenarios {

/// The memory of this process, in bytes.
struct ProcessMemory {
  std::int64_t resident = 0;     ///< in pages of the machine
  std::int64_t heap_in_use = 0;  ///< of malloc's memory; 0 where the C library does not tell
};

/// Reads the memory of this process. First makes malloc give back its free memory, because freed
/// memory that the C library keeps is not a leak. Any thread.
ProcessMemory read_process_memory();

/// Returns the growth per cycle of `values`, one value a cycle, after the first third: the least
/// value of the last third less the least of the middle third, divided by the cycles between. A
/// leak grows on. Memory that a process takes once, or takes and gives back, does not count.
std::int64_t growth_per_cycle(std::span<const std::int64_t> values) noexcept;

/// This process over cycles of which none should leave anything behind.
class ProcessGrowth {
 public:
  void add(const ProcessMemory& memory);
  /// Adds the growth of resident and heap bytes, in all and per cycle. With `most_bytes`, checks
  /// that each grows by at most so many bytes a cycle. Names of figures and checks begin with
  /// `kind`.
  void conclude(ScenarioReport& report, const std::string& kind,
                std::optional<std::int64_t> most_bytes) const;

 private:
  std::vector<std::int64_t> resident_;
  std::vector<std::int64_t> heap_;
};

struct MemoryReading {
  std::int64_t tracked = 0;      ///< kind device, all purposes
  std::int64_t weights = 0;      ///< tracked as ModelWeights
  std::int64_t kv_cache = 0;     ///< tracked as KVCache
  std::int64_t buffers = 0;      ///< tracked as IntermediateBuffers
  std::int64_t driver_free = 0;  ///< Device::memory_info
  std::int64_t driver_used = 0;  ///< the same: total - free
  ProcessMemory process;
  std::optional<std::int64_t> nvml_used;  ///< as nvidia-smi shows it; none without NVML
};

/// Reads all of it, the process as read_process_memory does. Returns what Device::memory_info
/// returns.
Result<MemoryReading> read_memory(const Device& device);

/// A table of readings, one row each, in the order of `add`. NVML has a column when the first
/// reading has its figure.
class MemoryTable {
 public:
  /// `first_columns` name what tells the rows apart, e.g. "tokens".
  explicit MemoryTable(std::vector<std::string> first_columns);
  /// Adds a row; `firsts` are the values of the first columns.
  void add(std::vector<std::int64_t> firsts, const MemoryReading& reading);
  /// As add, for a table that begins with a cycle and how often it was read: a row that differs
  /// from the one before in what the process has at most takes its place, and is counted with it.
  void fold(std::int64_t cycle, const MemoryReading& reading);
  /// Reads the memory now, and adds that.
  MaybeFailure read(std::vector<std::int64_t> firsts, const Device& device);
  const FigureTable& table() const noexcept { return table_; }

 private:
  FigureTable table_;
  bool has_nvml_ = false;
};

/// Memory of a device at one moment.
struct MemoryBalance {
  std::int64_t driver_free = 0;  ///< bytes; Device::memory_info
  std::int64_t tracked = 0;      ///< bytes of kind device
  std::int64_t staging = 0;      ///< bytes of kind pinned_staging
  std::int64_t allocations = 0;  ///< recorded now, of both kinds
  bool operator==(const MemoryBalance&) const noexcept = default;
};

/// Reads the memory of a device. Waits for nothing. Returns what Device::memory_info returns.
Result<MemoryBalance> read_balance(const Device& device);

/// Makes four checks, one for each figure: `after` must be equal to `before`. The driver's free
/// bytes may differ by `tolerance_bytes`, because other processes use the same machine.
void expect_same(ScenarioReport& report, std::string_view when, const MemoryBalance& before,
                 const MemoryBalance& after, std::int64_t tolerance_bytes = 0);

/// The expected refusal of a call.
struct ExpectedRefusal {
  std::string name;                  ///< of its figures, snake_case
  std::int64_t required_bytes = 0;   ///< that the status must name
  std::int64_t held_bytes = 0;       ///< that the call itself takes first, and gives back
  std::int64_t tolerance_bytes = 0;  ///< of what the driver says: rounding, others
};

/// Makes the call and adds figures and checks: insufficient_vram naming what was required and what
/// was available (the driver's free bytes less `held_bytes`, and less than required), and nothing
/// else changed.
MaybeFailure expect_refused(ScenarioReport& report, const Device& device,
                            const ExpectedRefusal& expected, const std::function<Status()>& call);

}  // namespace kvarena::scenarios
