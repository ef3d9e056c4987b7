#include "tools/monitor/nvml_view.hpp"

#include "base/excerpt.hpp"
#include "tools/quantity.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvarena::tools {

std::vector<std::string> lines_of_processes(const NvmlMemory& nvml) {
  std::vector<std::string> lines;
  for (const GpuProcess& process : nvml.processes) {
    const std::string bytes =
        process.bytes ? human_bytes(static_cast<std::int64_t>(*process.bytes)) : "bytes not told";
    lines.push_back(fmt::format("process {} {}: {}", process.pid, printable(process.name), bytes));
  }
  return lines;
}

nlohmann::ordered_json json_of_processes(const NvmlMemory& nvml) {
  auto processes = nlohmann::ordered_json::array();
  for (const GpuProcess& process : nvml.processes) {
    nlohmann::ordered_json bytes;
    if (process.bytes) bytes = *process.bytes;
    processes.push_back({{"pid", process.pid}, {"name", process.name}, {"bytes", bytes}});
  }
  return processes;
}

}  // namespace kvarena::tools
