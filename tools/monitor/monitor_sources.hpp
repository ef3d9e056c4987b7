#pragma once

/// @file
/// The sources of `kvarena monitor`. A device: used and free memory and the processes that use it,
/// as nvidia-smi shows them (device_source.cpp). A kvarena HTTP server (server_source.cpp).

#include "tools/console.hpp"
#include "tools/device_option.hpp"
#include "tools/monitor/monitor_frame.hpp"
#include "tools/monitor/stats_view.hpp"

#include "kvarena/base/clock.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/memory_drift.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

/// Returns the source that `choice` names, from `gpus` (identify_devices). A GPU is opened only
/// when `ask` fails. When nothing can be watched, reports the reason on the console and returns
/// nothing. Warns when `auto` takes the host.
std::unique_ptr<MonitorSource> open_device_source(const Console& console,
                                                  const DeviceChoice& choice,
                                                  const CudaDeviceList& gpus, const NvmlQuery& ask);

/// Which server, and how to ask it.
struct HealthServerAddress {
  std::string url;        ///< as parse_http_url gives it
  std::string token{};    ///< empty: none
  std::string ca_file{};  ///< of certificate authorities, PEM; empty: the system's
  std::chrono::milliseconds limit = std::chrono::seconds(10);  ///< for the whole answer
};

/// A server's answer, or why there is none.
struct HealthAnswer {
  std::string body;      ///< of the answer, as it came
  std::string happened;  ///< why it failed; empty: it did not
  std::string advice;    ///< what to do

  bool is_ok() const noexcept { return happened.empty(); }
};

/// Sends GET /stats to a server with libcurl. A failure is described in clear words. An answer has
/// at most 64 MiB. Proxies of the environment are not used.
HealthAnswer fetch_stats(const HealthServerAddress& server);

/// A server's /stats.
class ServerSource final : public MonitorSource {
 public:
  ServerSource(HealthServerAddress server, const Clock& clock)
      : server_(std::move(server)), clock_(clock) {}
  MonitorFrame look() override;

 private:
  HealthServerAddress server_;
  const Clock& clock_;
  std::optional<StatsDocument> before_;
  std::int64_t before_ns_ = 0;
};

}  // namespace kvarena::tools
