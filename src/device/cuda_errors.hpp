#pragma once

/// @file
/// The meaning of CUDA's error numbers for kvarena. The driver's CUresult and the runtime's
/// cudaError_t have the same numbers. Pure functions, apart from asking which driver is installed.

#include "kvarena/base/result.hpp"

#include <cstdint>
#include <string>

namespace kvarena {

/// Returns whether the error ends the process's use of the GPU. Either "any further CUDA work will
/// return the same error. To continue using CUDA, the process must be terminated and relaunched"
/// (the CUDA Runtime API's reference, data types), or the memory can no longer be trusted
/// (uncorrectable ECC).
bool is_sticky(std::int32_t cuda_error) noexcept;
/// Returns {device_error, resource, native, subject}.
Status device_error(std::int32_t cuda_error, Resource resource, std::uint64_t subject = 0) noexcept;
/// Returns how many GPUs the process sees. Returns device_error (device) when there is no usable
/// driver or no GPU.
Result<std::int32_t> count_cuda_devices();
/// Returns CUDA's name and text for the status's `native`, and what to do about it, in one line.
/// Empty when the status has no CUDA error number.
std::string cuda_remark(const Status& status);
/// Returns `text` with the remark on its own line.
std::string with_cuda_remark(std::string text, const Status& status) noexcept;

}  // namespace kvarena
