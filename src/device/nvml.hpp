#pragma once

/// @file
/// NVML, the library behind nvidia-smi, loaded at run time: nothing is linked and no header of
/// NVIDIA's is needed. A function that a version of it lacks leaves its figures out.

#include "kvarena/base/result.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "kvarena/device/memory_drift.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvarena {

struct NvmlFunctions;

/// The loaded and initialised library. Thread-safe, as NVML is.
class Nvml {
 public:
  static constexpr const char* kLibrary = "libnvidia-ml.so.1";  ///< as the driver installs it

  /// Loads `library` and initialises it. Returns unsupported (device) when it cannot be loaded or
  /// lacks what there is no answer without, or device_error (device) with NVML's number.
  static Result<std::unique_ptr<Nvml>> open(const char* library = kLibrary);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// What it says of a GPU. Returns unsupported (device) for a MIG instance, of which it would tell
  /// the whole card's figures, and device_error (device) with NVML's number.
  Result<NvmlMemory> memory_of(const CudaDeviceInfo& gpu) const;

 private:
  Nvml(void* library, std::unique_ptr<NvmlFunctions> functions) noexcept;
  Status add_memory(void* device, NvmlMemory& memory) const;
  void add_processes(void* device, std::vector<GpuProcess>& processes) const;
  std::string driver_version() const;
  std::string name_of(std::uint32_t pid) const;

  void* const library_;
  const std::unique_ptr<NvmlFunctions> functions_;
};

/// Tells `drift` apart by process: the bytes of process `own_pid`, what of them is not tracked, and
/// the sum of all others. They stay absent where NVML does not list the process under that id
/// (another process namespace) or does not tell every figure that is summed.
void attribute(MemoryDrift& drift, const NvmlMemory& memory, std::int64_t own_pid);

}  // namespace kvarena
