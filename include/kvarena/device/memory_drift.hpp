#pragma once

/// @file
/// Memory drift: what the driver says is used, against what the tracker recorded, and whose the
/// rest is. Where NVML (libnvidia-ml, loaded at run time; nothing links to it) can be had, the rest
/// is told apart by process. Thread-safe.

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
  std::int64_t pid = 0;                ///< in this machine's process namespace where visible
  std::optional<std::uint64_t> bytes;  ///< absent where the driver does not tell
  std::string name;                    ///< may be empty
};

/// What NVML tells of one GPU: nvidia-smi's figures.
struct NvmlMemory {
  std::uint64_t total_bytes = 0;      ///< of the card
  std::uint64_t used_bytes = 0;       ///< by anyone, as nvidia-smi shows it
  std::uint64_t reserved_bytes = 0;   ///< by the driver for itself; an old one counts it as used
  std::string driver_version;         ///< "580.65.06"
  std::vector<GpuProcess> processes;  ///< compute processes, by pid
};

/// Where the used memory of a device goes: used = tracked + overhead + growth. On a host device
/// used is what is tracked, or what the machine lacks to give the whole capacity when that is more:
/// drift is 0 until the machine itself is short.
struct MemoryDrift {
  std::uint64_t driver_used_bytes = 0;  ///< total - free, as the driver tells this process
  std::uint64_t tracked_bytes = 0;      ///< kind device, engine's registrations and totals included
  std::int64_t drift_bytes = 0;         ///< driver_used - tracked; negative: tracked more than used
  std::uint64_t overhead_bytes = 0;     ///< driver_used - tracked when the device was opened: this
                                        ///< process's context and whoever else was there
  std::int64_t growth_bytes = 0;        ///< drift - overhead: what came since and nobody recorded
  std::optional<std::uint64_t> own_bytes;      ///< of this process, by NVML
  std::optional<std::uint64_t> context_bytes;  ///< own - tracked, at least 0: the CUDA context, and
                                               ///< what this process did not record
  std::optional<std::uint64_t> other_bytes;    ///< of other processes, by NVML
};

/// Asks the driver now. Returns device_error when it cannot tell.
KVARENA_EXPORT Result<MemoryDrift> measure_drift(const Device& device);
/// What NVML says of the device's GPU. The library is loaded by the first call that needs it.
/// Returns unsupported (device) with no NVML, on a host device and on a MIG instance, of which NVML
/// would tell the whole card's figures; device_error (`native`: NVML's number) when it cannot tell.
/// Processes, names and version are left out where it has none.
KVARENA_EXPORT Result<NvmlMemory> nvml_memory(const Device& device);
/// The same of a GPU that list_devices found.
KVARENA_EXPORT Result<NvmlMemory> nvml_memory(const CudaDeviceInfo& gpu);
/// Lines for people.
KVARENA_EXPORT std::string to_string(const MemoryDrift& drift) noexcept;

}  // namespace kvarena
