// A libnvidia-ml with the functions that kvarena asks for. KVARENA_FAKE_NVML_OLD leaves out what
// old versions lack, KVARENA_FAKE_NVML_EMPTY nearly everything.

#include "support/fake_nvml/fake_nvml.hpp"

#include <algorithm>
#include <cstring>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;

struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance, compute_instance;
};

}  // namespace

EXPORTED kvarena::test::FakeNvml fake_nvml;
kvarena::test::FakeNvml fake_nvml;

EXPORTED int nvmlInit_v2() {
  if (fake_nvml.init_error == 0) ++fake_nvml.num_open;
  return fake_nvml.init_error;
}

#ifndef KVARENA_FAKE_NVML_EMPTY
EXPORTED int nvmlShutdown() {
  --fake_nvml.num_open;
  return 0;
}

EXPORTED int nvmlDeviceGetHandleByPciBusId_v2(const char* pci_bus_id, void** device) {
  if (std::strcmp(pci_bus_id, "0000:1b:00.0") != 0) return kNotFound;
  *device = &fake_nvml;
  return 0;
}

EXPORTED int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  if (device != &fake_nvml) return kNotFound;
  const std::uint64_t used = fake_nvml.used + fake_nvml.reserved;
  *memory = {fake_nvml.total, fake_nvml.total - used, used};
  return fake_nvml.memory_error;
}
#endif

#if !defined(KVARENA_FAKE_NVML_EMPTY) && !defined(KVARENA_FAKE_NVML_OLD)
EXPORTED int nvmlDeviceGetMemoryInfo_v2(void*, MemoryV2* memory) {
  if (memory->version != (40U | 2U << 24)) return kNotSupported;
  if (fake_nvml.memory_v2_error != 0) return fake_nvml.memory_v2_error;
  memory->total = fake_nvml.total;
  memory->reserved = fake_nvml.reserved;
  memory->used = fake_nvml.used;
  memory->free = fake_nvml.total - fake_nvml.used - fake_nvml.reserved;
  return 0;
}

EXPORTED int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned int* count,
                                                     ProcessInfo* infos) {
  if (fake_nvml.processes_error != 0) return fake_nvml.processes_error;
  const unsigned int room = *count;
  *count = static_cast<unsigned int>(fake_nvml.processes.size());
  if (fake_nvml.grow_between_calls > 0) {
    --fake_nvml.grow_between_calls;
    *count = std::max(*count, room + 1);
    return kInsufficientSize;
  }
  if (*count > room) return kInsufficientSize;
  for (const auto& process : fake_nvml.processes) *infos++ = {process.pid, process.bytes, 0, 0};
  return 0;
}

EXPORTED int nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  for (const auto& process : fake_nvml.processes) {
    if (process.pid != pid || process.name.empty()) continue;
    std::strncpy(name, process.name.c_str(), length);
    return 0;
  }
  return kNotFound;
}

EXPORTED int nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  std::strncpy(version, "580.65.06", length);
  return 0;
}
#endif
