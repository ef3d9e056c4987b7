// kvarena monitor --device: a GPU by NVML alone, the host by itself.

#include "tools/monitor/device_source.hpp"

#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;
using Kind = DeviceChoice::Kind;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

CudaDeviceInfo gpu_number(std::int32_t ordinal) {
  CudaDeviceInfo gpu;
  gpu.ordinal = ordinal;
  gpu.name = "NVIDIA H200";
  gpu.pci_bus_id = "0000:1b:00.0";
  return gpu;
}

NvmlMemory full_card() {
  NvmlMemory nvml;
  nvml.total_bytes = 140 * kGiB;
  nvml.used_bytes = 139 * kGiB;
  nvml.reserved_bytes = kGiB;
  nvml.driver_version = "580.65.06";
  nvml.processes = {{17, 138 * kGiB, "server"}, {42, std::nullopt, "evil\x1b[2J\r\xff"}};
  return nvml;
}

TEST(GpuSource, ShowsAFullCardAndWhoFilledIt) {
  std::string asked;
  GpuSource source(gpu_number(1), [&asked](const CudaDeviceInfo& gpu) -> Result<NvmlMemory> {
    asked = gpu.pci_bus_id;
    return full_card();
  });
  const MonitorFrame frame = source.look();
  ASSERT_TRUE(frame.is_ok()) << frame.happened;
  EXPECT_EQ(asked, "0000:1b:00.0");
  EXPECT_EQ(frame.lines,
            (std::vector<std::string>{"cuda:1 NVIDIA H200  139.00 GiB used, 0 B free of 140.00 GiB",
                                      "  driver 580.65.06: 1.00 GiB reserved; 2 processes by NVML",
                                      "  process 17 server: 138.00 GiB",
                                      "  process 42 evil?[2J??: bytes not told"}));
  EXPECT_EQ(frame.line,
            "memory device=\"cuda:1 NVIDIA H200\" used=139.00GiB free=0B total=140.00GiB "
            "processes=2");
  EXPECT_EQ(frame.document["free_bytes"], 0);
  EXPECT_EQ(frame.document["processes"][0]["bytes"], 138 * kGiB);
  EXPECT_TRUE(frame.document["processes"][1]["bytes"].is_null());
}

TEST(GpuSource, ReservedCountedAsUsedLeavesNothingBelowZero) {
  GpuSource source(gpu_number(0), [](const CudaDeviceInfo&) -> Result<NvmlMemory> {
    NvmlMemory nvml = full_card();
    nvml.used_bytes = nvml.total_bytes;
    return nvml;
  });
  EXPECT_EQ(source.look().document["free_bytes"], 0);
}

TEST(GpuSource, SaysWhyNvmlTellsNothingAnyMore) {
  GpuSource source(gpu_number(0), [](const CudaDeviceInfo&) -> Result<NvmlMemory> {
    return Status{StatusCode::device_error, Resource::device, Option::none, 15, 0, 0, 0};
  });
  const MonitorFrame frame = source.look();
  EXPECT_FALSE(frame.is_ok());
  EXPECT_TRUE(frame.happened.starts_with("cuda:0 NVIDIA H200, by NVML: ")) << frame.happened;
  EXPECT_FALSE(contains(frame.happened, "\n"));
}

/// What open_device_source says and returns.
struct Opened {
  std::unique_ptr<MonitorSource> source;
  std::string err;
};

Opened open(const DeviceChoice& choice, const CudaDeviceList& gpus, bool has_nvml) {
  std::ostringstream out;
  std::ostringstream err;
  auto source = open_device_source(Console{out, err}, choice, gpus,
                                   [has_nvml](const CudaDeviceInfo&) -> Result<NvmlMemory> {
                                     if (!has_nvml) return Status{StatusCode::unsupported};
                                     return full_card();
                                   });
  return {std::move(source), err.str()};
}

TEST(OpenDeviceSource, AGpuThatNvmlKnowsIsNotOpened) {
  CudaDeviceList gpus;
  gpus.devices = {gpu_number(0), gpu_number(1000)};  // which no machine has: it could not be opened
  const Opened second = open({Kind::cuda, 1000}, gpus, true);
  ASSERT_NE(second.source, nullptr) << second.err;
  EXPECT_EQ(second.err, "");
  EXPECT_TRUE(contains(second.source->look().line, "cuda:1000 NVIDIA H200"));
  const Opened automatic = open({Kind::automatic, 0}, gpus, true);
  ASSERT_NE(automatic.source, nullptr);
  EXPECT_TRUE(contains(automatic.source->look().line, "cuda:0 NVIDIA H200"));
}

TEST(OpenDeviceSource, WithoutNvmlItHasToBeOpened) {
  CudaDeviceList gpus;
  gpus.devices = {gpu_number(1000)};
  const Opened opened = open({Kind::cuda, 1000}, gpus, false);
  EXPECT_EQ(opened.source, nullptr);
  EXPECT_TRUE(contains(opened.err, "--device cuda:1000: ")) << opened.err;
}

TEST(OpenDeviceSource, TheHostWithAWarningOfItsOwn) {
  EXPECT_EQ(open({Kind::cpu, 0}, {}, true).err, "");
  const Opened opened = open({Kind::cpu, 0}, {}, true);
  const MonitorFrame frame = opened.source->look();
  EXPECT_TRUE(frame.line.starts_with("memory device=host used=")) << frame.line;
  EXPECT_TRUE(frame.document["processes"].is_null());
  if (!list_devices().devices.empty()) return;
  const Opened automatic = open({Kind::automatic, 0}, {}, true);
  ASSERT_NE(automatic.source, nullptr);
  EXPECT_TRUE(automatic.err.starts_with("warning: --device auto: no GPU, watching the host: "))
      << automatic.err;
}

}  // namespace
}  // namespace kvarena::tools
