#include "device/nvml.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace kvarena {
namespace {

// The binary interface of NVML, from its reference: docs.nvidia.com/deploy/nvml-api. nvmlReturn_t
// is an enum, and nvmlDevice_t an opaque pointer. The version in the name of a function fixes the
// layout of the struct that it takes.
using Return = int;
constexpr Return kSuccess = 0;
constexpr Return kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;  // NVML_VALUE_NOT_AVAILABLE

struct Memory {  // nvmlMemory_t: `used` includes what the driver reserves
  unsigned long long total, free, used;
};
struct MemoryV2 {  // nvmlMemory_v2_t: `used` is the figure of nvidia-smi
  unsigned int version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned int kMemoryV2 = sizeof(MemoryV2) | 2U << 24;  // NVML_STRUCT_VERSION
struct ProcessInfo {                                             // nvmlProcessInfo_t of _v3
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
static_assert(sizeof(Memory) == 24 && sizeof(MemoryV2) == 40 && sizeof(ProcessInfo) == 24);

/// Looks up a function of the library; nullptr when the library lacks it.
template <class Function>
void look_up(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, symbol));
}

Status nvml_error(Return error) noexcept {
  return {StatusCode::device_error, Resource::device, Option::none, error, 0, 0, 0};
}

/// Whether the GPU is a part of a card, with the card's bus id: "NVIDIA H200 MIG 1g.18gb".
bool is_mig_instance(const CudaDeviceInfo& gpu) noexcept {
  return gpu.name.find(" MIG ") != gpu.name.npos;
}

}  // namespace

/// The functions of the loaded library.
struct NvmlFunctions {
  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  Return (*device)(const char* pci_bus_id, void** device) = nullptr;
  Return (*memory)(void* device, Memory* memory) = nullptr;
  // Some versions lack these:
  Return (*memory_v2)(void* device, MemoryV2* memory) = nullptr;
  Return (*processes)(void* device, unsigned int* count, ProcessInfo* infos) = nullptr;
  Return (*name)(unsigned int pid, char* name, unsigned int length) = nullptr;
  Return (*driver_version)(char* version, unsigned int length) = nullptr;

  bool has_what_it_needs() const noexcept {
    return init != nullptr && shutdown != nullptr && device != nullptr &&
           (memory != nullptr || memory_v2 != nullptr);
  }
};

Result<std::unique_ptr<Nvml>> Nvml::open(const char* library) {
  void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) return unsupported(Resource::device);
  auto functions = std::make_unique<NvmlFunctions>();
  look_up(loaded, "nvmlInit_v2", functions->init);
  look_up(loaded, "nvmlShutdown", functions->shutdown);
  look_up(loaded, "nvmlDeviceGetHandleByPciBusId_v2", functions->device);
  look_up(loaded, "nvmlDeviceGetMemoryInfo", functions->memory);
  look_up(loaded, "nvmlDeviceGetMemoryInfo_v2", functions->memory_v2);
  look_up(loaded, "nvmlDeviceGetComputeRunningProcesses_v3", functions->processes);
  look_up(loaded, "nvmlSystemGetProcessName", functions->name);
  look_up(loaded, "nvmlSystemGetDriverVersion", functions->driver_version);
  Status failed = functions->has_what_it_needs() ? Status{} : unsupported(Resource::device);
  if (failed.is_ok()) {
    const Return error = functions->init();
    if (error != kSuccess) failed = nvml_error(error);
  }
  if (!failed) {
    ::dlclose(loaded);
    return failed;
  }
  return std::unique_ptr<Nvml>(new Nvml(loaded, std::move(functions)));
}

Nvml::Nvml(void* library, std::unique_ptr<NvmlFunctions> functions) noexcept
    : library_(library), functions_(std::move(functions)) {}

Nvml::~Nvml() {
  functions_->shutdown();
  ::dlclose(library_);
}

Result<NvmlMemory> Nvml::memory_of(const CudaDeviceInfo& gpu) const {
  if (is_mig_instance(gpu)) return unsupported(Resource::device);
  void* device = nullptr;
  const Return error = functions_->device(gpu.pci_bus_id.c_str(), &device);
  if (error != kSuccess) return nvml_error(error);
  NvmlMemory memory;
  if (Status status = add_memory(device, memory); !status) return status;
  memory.driver_version = driver_version();
  add_processes(device, memory.processes);
  return memory;
}

/// Reads the memory figures, by the second version of the function where there is one.
Status Nvml::add_memory(void* device, NvmlMemory& memory) const {
  MemoryV2 second{kMemoryV2, 0, 0, 0, 0};
  Return error = kSuccess;
  if (functions_->memory_v2 != nullptr) {
    error = functions_->memory_v2(device, &second);
    if (error == kSuccess) {
      memory.total_bytes = second.total;
      memory.used_bytes = second.used;
      memory.reserved_bytes = second.reserved;
      return {};
    }
  }
  if (functions_->memory == nullptr) return nvml_error(error);
  Memory first{};
  error = functions_->memory(device, &first);
  if (error != kSuccess) return nvml_error(error);
  memory.total_bytes = first.total;
  memory.used_bytes = first.used;
  return {};
}

/// Reads the processes. Without the function, the list stays empty.
void Nvml::add_processes(void* device, std::vector<GpuProcess>& processes) const {
  if (functions_->processes == nullptr) return;
  constexpr unsigned int kSlack = 16;  // processes may start between two calls
  constexpr int kTries = 4;
  unsigned int count = kSlack;
  std::vector<ProcessInfo> infos;
  Return error = kInsufficientSize;
  for (int i = 0; i < kTries && error == kInsufficientSize; ++i) {
    infos.resize(count + kSlack);
    count = static_cast<unsigned int>(infos.size());
    error = functions_->processes(device, &count, infos.data());
  }
  if (error != kSuccess) return;
  infos.resize(std::min<std::size_t>(infos.size(), count));
  for (const ProcessInfo& info : infos) {
    GpuProcess process{info.pid, std::nullopt, name_of(info.pid)};
    if (info.used_bytes != kNotAvailable) process.bytes = info.used_bytes;
    processes.push_back(std::move(process));
  }
  std::ranges::sort(processes, {}, &GpuProcess::pid);
}

std::string Nvml::driver_version() const {
  std::array<char, 80> text{};  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
  if (functions_->driver_version == nullptr) return {};
  const Return error = functions_->driver_version(text.data(), text.size() - 1);
  return error == kSuccess ? text.data() : "";
}

std::string Nvml::name_of(std::uint32_t pid) const {
  std::array<char, 1024> text{};
  if (functions_->name == nullptr) return {};
  const Return error = functions_->name(pid, text.data(), text.size() - 1);
  return error == kSuccess ? text.data() : "";
}

/// One process without a figure makes the sum over other processes unknown.
void attribute(MemoryDrift& drift, const NvmlMemory& memory, std::int64_t own_pid) {
  std::optional<std::uint64_t> others = 0;
  bool is_listed = false;
  for (const GpuProcess& process : memory.processes) {
    if (process.pid == own_pid) {
      is_listed = true;
      drift.own_bytes = process.bytes;
    } else if (!process.bytes) {
      others.reset();
    } else if (others) {
      *others += *process.bytes;
    }
  }
  if (is_listed) drift.other_bytes = others;
  if (drift.own_bytes) {
    drift.context_bytes = *drift.own_bytes - std::min(*drift.own_bytes, drift.tracked_bytes);
  }
}

}  // namespace kvarena
