#include "kvarena/device/memory_drift.hpp"

#include "base/out_of_memory.hpp"
#include "device/memory_report.hpp"
#include "device/nvml.hpp"

#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/device.hpp"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace kvarena {
namespace {

/// The driver's figure and the tracker's. They are of the same instant unless others allocate all
/// the time.
struct Reading {
  MemoryInfo memory;
  std::uint64_t tracked_bytes = 0;
};

/// Reads both figures, and repeats while allocations happen in between.
Result<Reading> read_both(const Device& device) {
  constexpr int kTries = 4;
  MemoryBreakdown before = device.tracker().breakdown();
  Reading reading;
  for (int i = 0; i < kTries; ++i) {
    const Result<MemoryInfo> memory = device.memory_info();
    if (!memory) return memory.status();
    const MemoryBreakdown after = device.tracker().breakdown();
    reading = {*memory, after.total.bytes};
    const bool is_quiet =
        before.allocations_ever == after.allocations_ever && before.frees_ever == after.frees_ever;
    if (is_quiet) break;
    before = after;
  }
  return reading;
}

std::string signed_bytes_text(std::int64_t bytes) {
  const auto amount = static_cast<std::uint64_t>(bytes < 0 ? -bytes : bytes);
  return fmt::format("{}{}", bytes < 0 ? "-" : "", bytes_text(amount));
}

/// The figure, or a note that NVML did not tell it.
std::string told(const std::optional<std::uint64_t>& bytes) {
  return bytes ? bytes_text(*bytes) : "not told";
}

}  // namespace

Result<MemoryDrift> measure_drift(const Device& device) {
  const Result<Reading> reading = read_both(device);
  if (!reading) return reading.status();
  MemoryDrift drift;
  drift.tracked_bytes = reading->tracked_bytes;
  drift.driver_used_bytes = reading->memory.total_bytes - reading->memory.free_bytes;
  // Only the tracker knows what the capacity of a host device is used for.
  if (device.kind() == DeviceKind::host) {
    drift.driver_used_bytes = std::max(drift.driver_used_bytes, drift.tracked_bytes);
  }
  drift.overhead_bytes = device.overhead_bytes();
  drift.drift_bytes = static_cast<std::int64_t>(drift.driver_used_bytes - drift.tracked_bytes);
  drift.growth_bytes = drift.drift_bytes - static_cast<std::int64_t>(drift.overhead_bytes);
  if (const Result<NvmlMemory> memory = nvml_memory(device)) {
    attribute(drift, *memory, ::getpid());
  }
  return drift;
}

Result<NvmlMemory> nvml_memory(const Device& device) {
  const auto* cuda = dynamic_cast<const CudaDevice*>(&device);
  if (cuda == nullptr) return unsupported(Resource::device);
  return nvml_memory(cuda->info());
}

Result<NvmlMemory> nvml_memory(const CudaDeviceInfo& gpu) {
  // Never destroyed: a monitor that is never destroyed may ask until the process ends.
  static const auto& nvml = *new Result<std::unique_ptr<Nvml>>(Nvml::open());
  if (!nvml) return nvml.status();
  return (*nvml)->memory_of(gpu);
}

std::string to_string(const MemoryDrift& drift) noexcept try {
  return fmt::format(
      "driver used {}\ntracked     {}\ndrift       {}, of which {} when the device was opened, {} "
      "since\nby NVML     own {}, of which {} not tracked, other processes {}\n",
      bytes_text(drift.driver_used_bytes), bytes_text(drift.tracked_bytes),
      signed_bytes_text(drift.drift_bytes), bytes_text(drift.overhead_bytes),
      signed_bytes_text(drift.growth_bytes), told(drift.own_bytes), told(drift.context_bytes),
      told(drift.other_bytes));
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

}  // namespace kvarena
