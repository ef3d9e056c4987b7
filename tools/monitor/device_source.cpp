#include "tools/monitor/monitor_sources.hpp"

#include "base/excerpt.hpp"
#include "tools/option_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace kvarena::tools {

namespace {

using Json = nlohmann::ordered_json;

/// A device's memory, from NVML or from the device.
struct Figures {
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t free_bytes = 0;
};

std::string human(std::uint64_t bytes) { return human_bytes(static_cast<std::int64_t>(bytes)); }

MonitorFrame frame_of(const std::string& name, const Figures& memory) {
  MonitorFrame frame;
  frame.lines.push_back(fmt::format("{}  {} used, {} free of {}", name, human(memory.used_bytes),
                                    human(memory.free_bytes), human(memory.total_bytes)));
  LineFields line("memory");
  line.add("device", name);
  line.add_bytes("used", static_cast<std::int64_t>(memory.used_bytes));
  line.add_bytes("free", static_cast<std::int64_t>(memory.free_bytes));
  line.add_bytes("total", static_cast<std::int64_t>(memory.total_bytes));
  frame.line = line.text();
  frame.document = {{"device", name},
                    {"total_bytes", memory.total_bytes},
                    {"used_bytes", memory.used_bytes},
                    {"free_bytes", memory.free_bytes},
                    {"reserved_bytes", nullptr},
                    {"driver_version", nullptr},
                    {"processes", nullptr}};
  return frame;
}

MonitorFrame failure(const std::string& name, const Status& status) {
  MonitorFrame frame;
  frame.happened = fmt::format("{}: {}", name, describe_in_one_line(status));
  return frame;
}

/// An open device: the host, or a GPU of which NVML tells nothing.
class DeviceSource final : public MonitorSource {
 public:
  explicit DeviceSource(OpenedDevice device) : device_(std::move(device)) {}
  MonitorFrame look() override {
    const Device& device = *device_.device;
    const std::string name = printable(device.name());
    const auto memory = device.memory_info();
    if (!memory) return failure(name, memory.status());
    MonitorFrame frame = frame_of(
        name, {memory->total_bytes, memory->total_bytes - memory->free_bytes, memory->free_bytes});
    if (device_.cuda != nullptr) {
      frame.lines.emplace_back(
          "  by a CUDA context of this process, which counts as used: there is no NVML");
    }
    return frame;
  }

 private:
  OpenedDevice device_;
};

}  // namespace

std::vector<std::string> lines_of_processes(const NvmlMemory& nvml) {
  std::vector<std::string> lines;
  for (const GpuProcess& process : nvml.processes) {
    const std::string bytes =
        process.bytes ? human_bytes(static_cast<std::int64_t>(*process.bytes)) : "bytes not told";
    lines.push_back(fmt::format("process {} {}: {}", process.pid, printable(process.name), bytes));
  }
  return lines;
}

Json json_of_processes(const NvmlMemory& nvml) {
  auto processes = Json::array();
  for (const GpuProcess& process : nvml.processes) {
    Json bytes;
    if (process.bytes) bytes = *process.bytes;
    processes.push_back({{"pid", process.pid}, {"name", process.name}, {"bytes", bytes}});
  }
  return processes;
}

GpuSource::GpuSource(CudaDeviceInfo gpu, NvmlQuery ask)
    : gpu_(std::move(gpu)), ask_(std::move(ask)) {}

MonitorFrame GpuSource::look() {
  const std::string name = fmt::format("cuda:{} {}", gpu_.ordinal, printable(gpu_.name));
  const auto nvml = ask_(gpu_);
  if (!nvml) return failure(name + ", by NVML", nvml.status());
  const std::uint64_t taken = std::min(nvml->total_bytes, nvml->used_bytes + nvml->reserved_bytes);
  MonitorFrame frame =
      frame_of(name, {nvml->total_bytes, nvml->used_bytes, nvml->total_bytes - taken});
  const std::string version = printable(nvml->driver_version);
  frame.lines.push_back(fmt::format("  driver {}: {} reserved; {} processes by NVML", version,
                                    human(nvml->reserved_bytes), nvml->processes.size()));
  for (const std::string& line : lines_of_processes(*nvml)) frame.lines.push_back("  " + line);
  frame.line += fmt::format(" processes={}", nvml->processes.size());
  frame.document["reserved_bytes"] = nvml->reserved_bytes;
  frame.document["driver_version"] = nvml->driver_version;
  frame.document["processes"] = json_of_processes(*nvml);
  return frame;
}

std::unique_ptr<MonitorSource> open_device_source(const Console& console,
                                                  const DeviceChoice& choice,
                                                  const CudaDeviceList& gpus,
                                                  const NvmlQuery& ask) {
  if (choice.kind != DeviceChoice::Kind::cpu) {
    const auto gpu =
        std::find_if(gpus.devices.begin(), gpus.devices.end(),
                     [&](const CudaDeviceInfo& info) { return info.ordinal == choice.ordinal; });
    if (gpu != gpus.devices.end() && ask(*gpu)) return std::make_unique<GpuSource>(*gpu, ask);
  }
  auto device = open_device(console, choice, 0, "watching the host");
  return device ? std::make_unique<DeviceSource>(std::move(*device)) : nullptr;
}

}  // namespace kvarena::tools
