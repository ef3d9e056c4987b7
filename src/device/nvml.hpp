#pragma once

/// @file
/// NVML, the library of nvidia-smi, loaded at run time. Nothing links to it, and no NVIDIA header
/// is needed. When a version of NVML lacks a function, the function's figures stay empty.

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
  static constexpr const char* kLibrary = "libnvidia-ml.so.1";  ///< the name under which the driver
                                                                ///< installs it

  /// Loads and initialises `library`. Returns unsupported (device) when it cannot be loaded or
  /// lacks a function without which there are no figures, or device_error (device) with NVML's
  /// number.
  static Result<std::unique_ptr<Nvml>> open(const char* library = kLibrary);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Returns NVML's figures of a GPU. Returns unsupported (device) for a MIG instance, because NVML
  /// would give the figures of the whole card, or device_error (device) with NVML's number.
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

/// Splits `drift` by process: the bytes of process `own_pid`, the part of them that is not tracked,
/// and the sum of all other processes. The figures stay absent when NVML does not list the process
/// under that id (another process namespace), or does not tell every figure of the sum.
void attribute(MemoryDrift& drift, const NvmlMemory& memory, std::int64_t own_pid);

}  // namespace kvarena
