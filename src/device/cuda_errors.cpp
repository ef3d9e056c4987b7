#include "device/cuda_errors.hpp"

#include "base/out_of_memory.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <cuda_runtime_api.h>
#include <spdlog/fmt/fmt.h>

#include <new>

namespace kvarena {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// Returns the advice for a driver that is missing, or older than the runtime with which kvarena
/// was built.
std::string driver_advice() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  const std::string needed = version_text(CUDART_VERSION);
  if (driver == 0) {
    return fmt::format(
        "No NVIDIA driver is loaded (libcuda.so.1 was not found). Install a driver for CUDA {} or "
        "newer; in a container, pass the GPU through (docker run --gpus all)",
        needed);
  }
  return fmt::format(
      "The NVIDIA driver is too old: it serves CUDA {}, this build needs {}. Install a newer "
      "driver, "
      "or build kvarena with an older toolkit",
      version_text(driver), needed);
}

/// Returns what a person can do about a CUDA error.
std::string advice(std::int32_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary: return driver_advice();
    case cudaErrorNoDevice:
      return "The driver sees no GPU. Look at nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, "
             "pass the GPU through";
    case cudaErrorSystemDriverMismatch:
      return "The kernel module and libcuda are of different versions. Reboot, or reload the "
             "module";
    case cudaErrorSystemNotReady:
      return "The machine's GPUs are not started up. Start nvidia-fabricmanager, then try again";
    case cudaErrorDevicesUnavailable:
      return "Another process has the GPU for itself. Look at nvidia-smi's compute mode";
    case cudaErrorMemoryAllocation:
      return "The GPU's memory is full; nvidia-smi shows who has it. A process that uses CUDA "
             "needs "
             "some hundred MiB for its context alone";
    case cudaErrorNoKernelImageForDevice:
      return "Build kvarena for this GPU's architecture (KVARENA_CUDA_ARCHS)";
    default: break;
  }
  if (is_sticky(error)) {
    return "The process cannot use the GPU any more and must be restarted; compute-sanitizer finds "
           "the kernel and the access";
  }
  return "Look the number up in the CUDA Runtime API's reference";
}

}  // namespace

bool is_sticky(std::int32_t cuda_error) noexcept {
  switch (cuda_error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice: return true;
    default: return false;
  }
}

Status device_error(std::int32_t cuda_error, Resource resource, std::uint64_t subject) noexcept {
  return {StatusCode::device_error, resource, Option::none, cuda_error, subject, 0, 0};
}

Result<std::int32_t> count_cuda_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return device_error(error, Resource::device);
  }
  if (count == 0) return device_error(cudaErrorNoDevice, Resource::device);
  return count;
}

std::string cuda_remark(const Status& status) {
  const bool is_ours = status.native != 0 && (status.code == StatusCode::device_error ||
                                              status.code == StatusCode::failed_precondition);
  if (!is_ours) return {};
  const auto error = static_cast<cudaError_t>(status.native);
  return fmt::format("{}: {}. {}.", cudaGetErrorName(error), cudaGetErrorString(error),
                     advice(status.native));
}

std::string with_cuda_remark(std::string text, const Status& status) noexcept try {
  const std::string remark = cuda_remark(status);
  return remark.empty() ? text : text + '\n' + remark;
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

std::string describe_cuda(const Status& status) noexcept {
  return with_cuda_remark(describe(status), status);
}

}  // namespace kvarena
