// NVML through a library of ours with its interface: what it tells, what it lacks, how it fails.

#include "device/nvml.hpp"

#include "support/fake_memory_source.hpp"
#include "support/fake_nvml/fake_nvml.hpp"
#include "support/faulty_device.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/host_device.hpp"
#include "kvarena/device/memory_drift.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

namespace kvarena {
namespace {

/// The fake's GPU, or another at `bus`.
CudaDeviceInfo gpu_at(const char* bus = "0000:1b:00.0", const char* name = "NVIDIA H200") {
  CudaDeviceInfo gpu;
  gpu.name = name;
  gpu.pci_bus_id = bus;
  return gpu;
}
constexpr unsigned long long kNotAvailable = ~0ULL;

class NvmlTest : public ::testing::Test {
 protected:
  ~NvmlTest() override {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  /// The object that `library` answers from, reset.
  test::FakeNvml& fake(const char* library = KVARENA_FAKE_NVML) {
    if (handle_ == nullptr) handle_ = ::dlopen(library, RTLD_NOW);
    auto* found = static_cast<test::FakeNvml*>(::dlsym(handle_, "fake_nvml"));
    if (found == nullptr) throw std::runtime_error(std::string("no fake in ") + library);
    *found = {};
    return *found;
  }
  static Result<NvmlMemory> ask(const char* library = KVARENA_FAKE_NVML) {
    const auto nvml = Nvml::open(library);
    if (!nvml) return nvml.status();
    return (*nvml)->memory_of(gpu_at());
  }

 private:
  void* handle_ = nullptr;
};

TEST_F(NvmlTest, TellsMemoryVersionAndProcesses) {
  test::FakeNvml& machine = fake();
  machine.processes = {{42, 60, "server"}, {7, kNotAvailable, ""}};
  const auto memory = ask();
  ASSERT_OK(memory);
  EXPECT_EQ(memory->total_bytes, 1000U);
  EXPECT_EQ(memory->used_bytes, 100U);
  EXPECT_EQ(memory->reserved_bytes, 30U);
  EXPECT_EQ(memory->driver_version, "580.65.06");
  ASSERT_EQ(memory->processes.size(), 2U);
  EXPECT_EQ(memory->processes[0].pid, 7);
  EXPECT_EQ(memory->processes[0].bytes, std::nullopt);
  EXPECT_EQ(memory->processes[0].name, "");
  EXPECT_EQ(memory->processes[1].bytes, 60U);
  EXPECT_EQ(memory->processes[1].name, "server");
}

TEST_F(NvmlTest, IsInitialisedAndShutDownInPairs) {
  test::FakeNvml& machine = fake();
  {
    const auto nvml = Nvml::open(KVARENA_FAKE_NVML);
    ASSERT_OK(nvml);
    EXPECT_EQ(machine.num_open, 1);
    EXPECT_OK((*nvml)->memory_of(gpu_at()));
  }
  EXPECT_EQ(machine.num_open, 0);
  machine.init_error = 9;
  EXPECT_FAILS(Nvml::open(KVARENA_FAKE_NVML), device_error, device);
  EXPECT_EQ(machine.num_open, 0);
}

TEST_F(NvmlTest, ListsMoreProcessesThanItHadRoomFor) {
  test::FakeNvml& machine = fake();
  for (unsigned int pid = 200; pid > 100; --pid) machine.processes.push_back({pid, pid, ""});
  const auto memory = ask();
  ASSERT_OK(memory);
  ASSERT_EQ(memory->processes.size(), 100U);
  EXPECT_EQ(memory->processes.front().pid, 101);
  EXPECT_EQ(memory->processes.back().bytes, 200U);
}

TEST_F(NvmlTest, StopsAskingForAListThatAlwaysGrows) {
  fake().grow_between_calls = 1000;
  const auto memory = ask();
  ASSERT_OK(memory);
  EXPECT_TRUE(memory->processes.empty());
  EXPECT_EQ(memory->used_bytes, 100U);
}

TEST_F(NvmlTest, ErrorsLeaveOutProcessesButNotMemory) {
  test::FakeNvml& machine = fake();
  machine.processes = {{42, 60, "server"}};
  machine.processes_error = 4;  // NVML_ERROR_NO_PERMISSION
  const auto memory = ask();
  ASSERT_OK(memory);
  EXPECT_TRUE(memory->processes.empty());
  machine.memory_v2_error = 3;  // NVML_ERROR_NOT_SUPPORTED
  const auto first_version = ask();
  ASSERT_OK(first_version);
  EXPECT_EQ(first_version->used_bytes, 130U);
  EXPECT_EQ(first_version->reserved_bytes, 0U);
  machine.memory_error = 15;  // NVML_ERROR_GPU_IS_LOST
  const auto lost = ask();
  EXPECT_FAILS(lost, device_error, device);
  EXPECT_EQ(lost.status().native, 15);
}

TEST_F(NvmlTest, UnknownGpusAreErrors) {
  fake();
  const auto nvml = Nvml::open(KVARENA_FAKE_NVML);
  ASSERT_OK(nvml);
  EXPECT_FAILS((*nvml)->memory_of(gpu_at("0000:ff:00.0")), device_error, device);
}

TEST_F(NvmlTest, TheFiguresOfACardAreNotThoseOfAPartOfIt) {
  fake().processes = {{42, 60, "a tenant of another part"}};
  const auto nvml = Nvml::open(KVARENA_FAKE_NVML);
  ASSERT_OK(nvml);
  const CudaDeviceInfo part = gpu_at("0000:1b:00.0", "NVIDIA H200 MIG 1g.18gb");
  EXPECT_FAILS((*nvml)->memory_of(part), unsupported, device);
  EXPECT_OK((*nvml)->memory_of(gpu_at()));
}

TEST_F(NvmlTest, OldLibrariesTellLess) {
  fake(KVARENA_FAKE_NVML_OLD).processes = {{42, 60, "server"}};
  const auto memory = ask(KVARENA_FAKE_NVML_OLD);
  ASSERT_OK(memory);
  EXPECT_EQ(memory->used_bytes, 130U);
  EXPECT_TRUE(memory->processes.empty());
  EXPECT_EQ(memory->driver_version, "");
}

TEST_F(NvmlTest, LibrariesThatAreNoneAreUnsupported) {
  EXPECT_FAILS(Nvml::open("/nowhere/libnvidia-ml.so.1"), unsupported, device);
  test::FakeNvml& machine = fake(KVARENA_FAKE_NVML_EMPTY);
  EXPECT_FAILS(Nvml::open(KVARENA_FAKE_NVML_EMPTY), unsupported, device);
  EXPECT_EQ(machine.num_open, 0);
}

// ---- whose memory it is -------------------------------------------------------------------------

MemoryDrift attributed(const std::vector<GpuProcess>& processes) {
  NvmlMemory memory;
  memory.processes = processes;
  MemoryDrift drift;
  drift.tracked_bytes = 45;
  attribute(drift, memory, 42);
  return drift;
}

TEST(Attribution, TellsOwnFromOthers) {
  const MemoryDrift drift = attributed({{7, 10, ""}, {42, 60, ""}, {99, 5, ""}});
  EXPECT_EQ(drift.own_bytes, 60U);
  EXPECT_EQ(drift.context_bytes, 15U);
  EXPECT_EQ(drift.other_bytes, 15U);
  EXPECT_EQ(attributed({{42, 60, ""}}).other_bytes, 0U);
}

TEST(Attribution, ANeighbourIsNoContextOfOurs) {
  const MemoryDrift drift = attributed({{7, 60'000'000'000, ""}, {42, 60, ""}});
  EXPECT_EQ(drift.context_bytes, 15U);
  EXPECT_EQ(drift.other_bytes, 60'000'000'000U);
  EXPECT_EQ(attributed({{42, 45, ""}}).context_bytes, 0U);
  EXPECT_EQ(attributed({{42, 30, ""}}).context_bytes, 0U) << "more is tracked than NVML tells";
}

TEST(Attribution, SaysNothingThatItDoesNotKnow) {
  const MemoryDrift elsewhere = attributed({{7, 10, ""}});  // our id is not on the list
  EXPECT_EQ(elsewhere.own_bytes, std::nullopt);
  EXPECT_EQ(elsewhere.context_bytes, std::nullopt);
  EXPECT_EQ(elsewhere.other_bytes, std::nullopt);
  const MemoryDrift hidden = attributed({{7, std::nullopt, ""}, {9, 4, ""}, {42, 60, ""}});
  EXPECT_EQ(hidden.own_bytes, 60U);
  EXPECT_EQ(hidden.context_bytes, 15U);
  EXPECT_EQ(hidden.other_bytes, std::nullopt);
  EXPECT_EQ(attributed({{9, 4, ""}, {42, std::nullopt, ""}}).own_bytes, std::nullopt);
  EXPECT_NE(to_string(hidden).find("not told"), std::string::npos);
}

// ---- drift of a host device ---------------------------------------------------------------------

TEST(HostDrift, IsZeroUntilTheMachineIsShort) {
  test::FakeMemorySource machine;
  const auto device = HostDevice::create({.capacity_bytes = 10000, .memory = &machine});
  ASSERT_OK(device);
  void* memory = (*device)->allocate({.bytes = 4000}).value();
  ASSERT_OK((*device)->tracker().set_total("another", MemoryPurpose::unknown, 500));
  MemoryDrift drift = measure_drift(**device).value();
  EXPECT_EQ(drift.tracked_bytes, 4500U);
  EXPECT_EQ(drift.driver_used_bytes, 4500U);
  EXPECT_EQ(drift.drift_bytes, 0);
  EXPECT_EQ(drift.own_bytes, std::nullopt);
  machine.available = 1000;  // of the 6000 that are left of the capacity
  drift = measure_drift(**device).value();
  EXPECT_EQ(drift.driver_used_bytes, 9000U);
  EXPECT_EQ(drift.drift_bytes, 4500);
  EXPECT_EQ(drift.growth_bytes, 4500);
  EXPECT_FAILS(nvml_memory(**device), unsupported, device);
  EXPECT_OK((*device)->free(memory));
}

TEST(HostDrift, FailsWhenTheDriverCannotTell) {
  const auto inner = HostDevice::create({.capacity_bytes = 10000});
  ASSERT_OK(inner);
  test::FaultyDevice device(**inner, 0);
  EXPECT_FAILS(measure_drift(device), device_error, none);
}

}  // namespace
}  // namespace kvarena
