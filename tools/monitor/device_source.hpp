#pragma once

/// @file
/// The source of `kvarena monitor` for a device: used and free memory and the processes that use
/// it, as nvidia-smi shows them.

#include "tools/console.hpp"
#include "tools/device_option.hpp"
#include "tools/monitor/monitor_frame.hpp"

#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/memory_drift.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvarena::tools {

/// A line for each process that NVML knows. Names of processes are their owners' choice: lines have
/// no control characters.
std::vector<std::string> lines_of_processes(const NvmlMemory& nvml);
/// An array of objects: pid, name, bytes (null where they are not told).
nlohmann::ordered_json json_of_processes(const NvmlMemory& nvml);

/// Asks NVML: nvml_memory, or what a test puts in its place.
using NvmlQuery = std::function<Result<NvmlMemory>(const CudaDeviceInfo&)>;

/// A GPU by NVML alone: it makes no CUDA context, so watching takes none of the GPU's memory and
/// works when there is none left.
class GpuSource final : public MonitorSource {
 public:
  /// `gpu` needs its ordinal, name and PCI address.
  GpuSource(CudaDeviceInfo gpu, NvmlQuery ask);
  MonitorFrame look() override;

 private:
  CudaDeviceInfo gpu_;
  NvmlQuery ask_;
};

/// An open device: the host, or a GPU of which NVML tells nothing.
class DeviceSource final : public MonitorSource {
 public:
  explicit DeviceSource(OpenedDevice device) : device_(std::move(device)) {}
  MonitorFrame look() override;

 private:
  OpenedDevice device_;
};

/// Returns the source that `choice` names, from `gpus` (identify_devices). A GPU is opened only
/// when `ask` fails. When nothing can be watched, reports the reason on the console and returns
/// nothing. Warns when `auto` takes the host.
std::unique_ptr<MonitorSource> open_device_source(const Console& console,
                                                  const DeviceChoice& choice,
                                                  const CudaDeviceList& gpus, const NvmlQuery& ask);

}  // namespace kvarena::tools
