#pragma once

/// @file
/// Memory drift: the difference between the used memory that the driver reports and the memory that
/// the tracker recorded. NVML, where it can be loaded, splits the difference by process. NVML is
/// libnvidia-ml; it is loaded at run time and nothing links to it. Thread-safe.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvarena {

class Device;
struct CudaDeviceInfo;

/// A process that uses memory of a GPU.
struct GpuProcess {
  std::int64_t pid = 0;  ///< in this machine's process namespace where that is visible
  std::optional<std::uint64_t> bytes;  ///< absent when the driver does not tell
  std::string name;                    ///< may be empty
};

/// NVML's figures of one GPU, as nvidia-smi shows them.
struct NvmlMemory {
  std::uint64_t total_bytes = 0;      ///< of the whole card
  std::uint64_t used_bytes = 0;       ///< by all processes, as nvidia-smi shows it
  std::uint64_t reserved_bytes = 0;   ///< by the driver for itself; an old driver counts it as used
  std::string driver_version;         ///< "580.65.06"
  std::vector<GpuProcess> processes;  ///< compute processes, by pid
};

/// The used memory of a device by origin: used = tracked + overhead + growth. On a host device,
/// used is the tracked memory, or what the machine lacks to give the whole capacity when that is
/// more. The drift there is 0 until the machine itself is short of memory.
struct MemoryDrift {
  std::uint64_t driver_used_bytes = 0;  ///< total - free, as the driver tells this process
  std::uint64_t tracked_bytes = 0;      ///< kind device, with the engine's registrations and
                                        ///< reported totals
  std::int64_t drift_bytes = 0;  ///< driver_used - tracked; negative: more was tracked than used
  std::uint64_t overhead_bytes = 0;  ///< drift when the device was opened: this process's
                                     ///< context and other processes
  std::int64_t growth_bytes = 0;  ///< drift - overhead: what came since then and was not recorded
  std::optional<std::uint64_t> own_bytes;      ///< of this process, from NVML
  std::optional<std::uint64_t> context_bytes;  ///< own - tracked, at least 0: the CUDA context and
                                               ///< what this process did not record
  std::optional<std::uint64_t> other_bytes;    ///< of other processes, from NVML
};

/// Asks the driver now. Returns device_error when the driver cannot tell.
KVARENA_EXPORT Result<MemoryDrift> measure_drift(const Device& device);
/// Returns NVML's figures of the device's GPU. The first call that needs NVML loads it. Returns
/// unsupported (device) without NVML, on a host device, and on a MIG instance, because NVML would
/// give the figures of the whole card. Returns device_error (`native`: NVML's number) when NVML
/// cannot tell. Processes, names and version stay empty where NVML has none.
KVARENA_EXPORT Result<NvmlMemory> nvml_memory(const Device& device);
/// Returns NVML's figures of a GPU that list_devices found.
KVARENA_EXPORT Result<NvmlMemory> nvml_memory(const CudaDeviceInfo& gpu);
/// Returns lines for people.
KVARENA_EXPORT std::string to_string(const MemoryDrift& drift) noexcept;

}  // namespace kvarena
