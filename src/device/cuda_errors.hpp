#pragma once

/// @file
/// What CUDA's error numbers mean to kvarena. The driver's CUresult and the runtime's cudaError_t
/// share their numbers. Pure, but for asking which driver is installed.

#include "kvarena/base/result.hpp"

#include <cstdint>
#include <string>

namespace kvarena {

/// Whether the error ends the process's use of the GPU: "any further CUDA work will return the same
/// error. To continue using CUDA, the process must be terminated and relaunched" (the CUDA Runtime
/// API's reference, data types), or the memory can no longer be trusted (uncorrectable ECC).
bool is_sticky(std::int32_t cuda_error) noexcept;
/// {device_error, resource, native, subject}.
Status device_error(std::int32_t cuda_error, Resource resource, std::uint64_t subject = 0) noexcept;
/// How many GPUs the process sees. Returns device_error (device) when there is no usable driver or
/// no GPU.
Result<std::int32_t> count_cuda_devices();
/// CUDA's name and words for the status's `native`, and what to do about it, in one line; empty
/// when the status has no number of CUDA's.
std::string cuda_remark(const Status& status);
/// `text`, and the remark on a line of its own.
std::string with_cuda_remark(std::string text, const Status& status) noexcept;

}  // namespace kvarena
