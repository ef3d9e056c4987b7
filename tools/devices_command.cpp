#include "tools/command_line.hpp"

#include "base/excerpt.hpp"
#include "tools/device_option.hpp"
#include "tools/monitor/monitor_sources.hpp"
#include "tools/option_values.hpp"
#include "tools/result_file.hpp"

#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/host_device.hpp"
#include "kvarena/device/memory_drift.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDevicesFooter = R"(
Examples:
  kvarena devices             the host and every GPU, or why there is no GPU
  kvarena devices --json      the same for programs, on standard output
  kvarena devices --json FILE and the same into a file
)";

std::string memory_text(std::uint64_t bytes) {
  return human_bytes(static_cast<std::int64_t>(bytes));
}

std::string line_of(const std::string& device, const std::string& name, const MemoryInfo& memory,
                    const std::string& remark) {
  return fmt::format(
      "{:<8} {:<28} {:>11} {:>11} {:>11}  {}\n", device, name, memory_text(memory.total_bytes),
      memory_text(memory.total_bytes - memory.free_bytes), memory_text(memory.free_bytes), remark);
}

Json json_of(const std::string& device, const char* kind, const std::string& name,
             const MemoryInfo& memory) {
  return {{"device", device},
          {"kind", kind},
          {"name", name},
          {"total_bytes", memory.total_bytes},
          {"used_bytes", memory.total_bytes - memory.free_bytes},
          {"free_bytes", memory.free_bytes}};
}

/// What NVML tells, or null.
Json json_of(const Result<NvmlMemory>& nvml) {
  if (!nvml) return {};
  return {{"driver_version", nvml->driver_version},
          {"total_bytes", nvml->total_bytes},
          {"used_bytes", nvml->used_bytes},
          {"reserved_bytes", nvml->reserved_bytes},
          {"processes", json_of_processes(*nvml)}};
}

Json json_of(const CudaDeviceInfo& gpu) {
  Json json = json_of(fmt::format("cuda:{}", gpu.ordinal), "cuda", gpu.name, gpu.memory);
  json["compute_capability"] = fmt::format("{}.{}", gpu.major, gpu.minor);
  json["multiprocessors"] = gpu.num_sms;
  json["integrated"] = gpu.is_integrated;
  json["pci_bus_id"] = gpu.pci_bus_id;
  json["nvml"] = json_of(nvml_memory(gpu));
  json["error"] = gpu.status ? Json() : Json(describe_cuda(gpu.status));
  return json;
}

/// The processes on a GPU, indented under its line; nothing without NVML.
std::string lines_of(const Result<NvmlMemory>& nvml) {
  if (!nvml) return {};
  std::string text =
      fmt::format("{:<8} driver {}: {} used, {} reserved\n", "", printable(nvml->driver_version),
                  memory_text(nvml->used_bytes), memory_text(nvml->reserved_bytes));
  for (const std::string& line : lines_of_processes(*nvml))
    text += fmt::format("{:<8} {}\n", "", line);
  return text;
}

std::string line_of(const CudaDeviceInfo& gpu) {
  std::string remark =
      fmt::format("compute capability {}.{}, {} SMs", gpu.major, gpu.minor, gpu.num_sms);
  if (gpu.is_integrated) remark += ", integrated: its memory is the machine's";
  if (!gpu.status) remark = describe_in_one_line(gpu.status);
  return line_of(fmt::format("cuda:{}", gpu.ordinal), printable(gpu.name), gpu.memory, remark) +
         lines_of(nvml_memory(gpu));
}

class DevicesCommand {
 public:
  CLI::App* declare(CLI::App& parent) {
    CLI::App* command = parent.add_subcommand(
        "devices", "The host and each GPU with its memory, or why there is no GPU");
    command->footer(kDevicesFooter);
    declare_json_option(*command, json_);
    json_option_ = command->get_option("--json")->expected(0, 1);
    return command;
  }
  ExitCode run(const Console& console) const;

 private:
  std::string json_;
  const CLI::Option* json_option_ = nullptr;  // may be given without a value: standard output
};

ExitCode DevicesCommand::run(const Console& console) const {
  const auto host = HostDevice::create();
  const auto host_memory = host ? (*host)->memory_info() : Result<MemoryInfo>(host.status());
  if (!host_memory) {
    console.error(describe(host_memory.status()), "a machine that says how much memory it has",
                  "look at /proc/meminfo and the process's control group");
    return ExitCode::environment;
  }
  const CudaDeviceList gpus = list_devices();
  Json devices = Json::array({json_of("host", "host", "host memory", *host_memory)});
  std::string text = fmt::format("{:<8} {:<28} {:>11} {:>11} {:>11}\n", "device", "name", "memory",
                                 "used", "free");
  text += line_of("host", "host memory", *host_memory, "");
  for (const CudaDeviceInfo& gpu : gpus.devices) {
    devices.push_back(json_of(gpu));
    text += line_of(gpu);
  }
  if (!gpus.error.empty()) text += fmt::format("No GPU: {}\n", gpus.error);
  const std::string target = json_.empty() && json_option_->count() > 0 ? "-" : json_;
  return print_result(console, target, text,
                      {{"cuda_built", gpus.cuda_built},
                       {"devices", devices},
                       {"cuda_error", gpus.error.empty() ? Json() : Json(gpus.error)}});
}

}  // namespace

Command devices_command(CLI::App& parent) { return make_command<DevicesCommand>(parent); }

}  // namespace kvarena::tools
