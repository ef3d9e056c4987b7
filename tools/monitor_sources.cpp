#include "monitor_sources.hpp"

#include "quantity.hpp"
#include "stats_view.hpp"

#include "kvarena/device/memory_drift.hpp"

#include <fmt/format.h>

namespace kvarena::tools {

namespace {

using Json = nlohmann::ordered_json;

std::string human(std::uint64_t bytes) { return human_bytes(static_cast<std::int64_t>(bytes)); }

void add_processes(const NvmlMemory& nvml, MonitorFrame& frame) {
  frame.document["driver_version"] = nvml.driver_version;
  frame.document["card_used_bytes"] = nvml.used_bytes;
  Json processes = Json::array();
  frame.lines.push_back(fmt::format("  driver {}: {} of {} used by {} processes",
                                    nvml.driver_version, human(nvml.used_bytes),
                                    human(nvml.total_bytes), nvml.processes.size()));
  for (const GpuProcess& process : nvml.processes) {
    frame.lines.push_back(fmt::format("  {:>8}  {:>11}  {}", process.pid,
                                      process.bytes ? human(*process.bytes) : "unknown",
                                      process.name));
    processes.push_back({{"pid", process.pid},
                         {"name", process.name},
                         {"bytes", process.bytes ? Json(*process.bytes) : Json()}});
  }
  frame.document["processes"] = std::move(processes);
}

}  // namespace

MonitorFrame ServerSource::look() {
  HealthAnswer answer = client_.stats();
  const std::int64_t now_ns = clock_.now_ns();
  MonitorFrame frame;
  if (answer.is_ok()) {
    try {
      const double elapsed_s = static_cast<double>(now_ns - before_ns_) * 1e-9;
      frame = frame_of_stats(url_, answer.document, before_, elapsed_s);
      before_ = std::move(answer.document);
      before_ns_ = now_ns;
      return frame;
    } catch (const Json::exception&) {
      answer.happened = "the answer is not the JSON of /stats";
      answer.advice = "is it a kvarena server, and of this version?";
    }
  }
  frame.happened = fmt::format("{}: {}", url_, answer.happened);
  frame.advice = answer.advice;
  return frame;
}

MonitorFrame DeviceSource::look() {
  MonitorFrame frame;
  const Device& device = *device_.device;
  const auto memory = device.memory_info();
  if (!memory) {
    frame.happened = fmt::format("{}: {}", device.name(), device.describe(memory.status()));
    return frame;
  }
  const std::uint64_t used = memory->total_bytes - memory->free_bytes;
  frame.line = fmt::format("{}  {} used, {} free of {}", device.name(), human(used),
                           human(memory->free_bytes), human(memory->total_bytes));
  frame.lines.push_back(frame.line);
  frame.document = {{"device", device.name()},
                    {"total_bytes", memory->total_bytes},
                    {"used_bytes", used},
                    {"free_bytes", memory->free_bytes}};
  if (const auto nvml = nvml_memory(device)) {
    add_processes(*nvml, frame);
  } else {
    frame.document["processes"] = nullptr;
    frame.lines.push_back("  no NVML for this device: processes are not known");
  }
  return frame;
}

}  // namespace kvarena::tools
