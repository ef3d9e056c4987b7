#include "device/cuda_context.hpp"

#include "base/log_internal.hpp"
#include "device/cuda_driver.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <cuda_runtime_api.h>

#include <new>

namespace kvarena {

namespace {

/// Set while this thread runs a host function.
thread_local bool in_host_function = false;

/// The runtime keeps the error of a call for cudaGetLastError, where the caller's own next check
/// would find it. This removes it; an error that was there before stays.
void forget(std::int32_t cuda_error) noexcept {
  if (cudaPeekAtLastError() == cuda_error) static_cast<void>(cudaGetLastError());
}

}  // namespace

CudaContext::Current::Current(const CudaContext& context) noexcept : driver_(context.driver_) {
  CUcontext now = nullptr;
  error_ = driver_.current(&now);
  if (error_ != 0 || now == context.context_) return;
  error_ = driver_.push(context.context_);
  pushed_ = error_ == 0;
}

CudaContext::Current::~Current() {
  CUcontext popped = nullptr;
  if (pushed_) static_cast<void>(driver_.pop(&popped));
}

bool CudaContext::runs_host_function() noexcept { return in_host_function; }
CudaContext::InHostFunction::InHostFunction() noexcept { in_host_function = true; }
CudaContext::InHostFunction::~InHostFunction() { in_host_function = false; }

CudaContext::CudaContext(const CudaDriverFunctions& driver, std::int32_t ordinal, Facts facts,
                         std::int32_t device, CUctx_st* context) noexcept
    : driver_(driver), ordinal_(ordinal), facts_(facts), device_(device), context_(context) {}

CudaContext::~CudaContext() { static_cast<void>(driver_.release(device_)); }

/// Asks for all facts before it retains the context, so that a failure leaves nothing behind.
Result<std::unique_ptr<CudaContext>> CudaContext::open(std::int32_t ordinal) {
  const Result<std::int32_t> count = count_cuda_devices();
  if (!count) return count.status();
  if (ordinal < 0 || ordinal >= *count) {
    return invalid_option(Option::ordinal, ordinal, 0, *count - 1);
  }
  const auto subject = static_cast<std::uint64_t>(ordinal);
  const CudaDriverFunctions& driver = cuda_driver_functions();
  if (driver.error != cudaSuccess) return device_error(driver.error, Resource::device, subject);
  int is_integrated = 0;
  const cudaError_t asked = cudaDeviceGetAttribute(&is_integrated, cudaDevAttrIntegrated, ordinal);
  if (asked != cudaSuccess) {
    forget(asked);
    return device_error(asked, Resource::device, subject);
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  int writes_64_bits = 0;
  CUresult error = driver.device(&device, ordinal);
  if (error == CUDA_SUCCESS) {
    error = driver.attribute(&writes_64_bits, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                             device);
  }
  if (error == CUDA_SUCCESS) error = driver.retain(&context, device);
  if (error != CUDA_SUCCESS) return device_error(error, Resource::device, subject);
  std::unique_ptr<CudaContext> opened(new (std::nothrow) CudaContext(
      driver, ordinal, {is_integrated != 0, writes_64_bits != 0}, device, context));
  if (opened == nullptr) {
    static_cast<void>(driver.release(device));
    return exhausted(Resource::host_memory, sizeof(CudaContext), 0);
  }
  return opened;
}

Status CudaContext::refusal(std::uint64_t subject) const noexcept {
  if (in_host_function) return failed_precondition(Resource::stream, subject);
  const std::int32_t lost_to = this->lost_to();
  if (lost_to == 0) return {};
  return {StatusCode::failed_precondition,
          Resource::device,
          Option::none,
          lost_to,
          static_cast<std::uint64_t>(ordinal_),
          0,
          0};
}

bool CudaContext::is_not_ready(std::int32_t cuda_error) noexcept {
  if (cuda_error != cudaErrorNotReady) return false;
  forget(cuda_error);
  return true;
}

/// The first thread that sees a sticky error reports it. Others get the refusal of a lost GPU.
Status CudaContext::failure(std::int32_t cuda_error, Resource resource,
                            std::uint64_t subject) const {
  forget(cuda_error);
  const Status status = device_error(cuda_error, resource, subject);
  if (!is_sticky(cuda_error)) return status;
  std::int32_t none = 0;
  if (!lost_to_.compare_exchange_strong(none, cuda_error)) return refusal(subject);
  log_line(LogLevel::critical, "cuda:{} is lost: {}", ordinal_, describe_cuda(status));
  return status;
}

}  // namespace kvarena
