#include "device/cuda_context.hpp"

#include "base/log_internal.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <new>

namespace kvarena {

struct CudaDriverFunctions {
  PFN_cuDeviceGet_v2000 device = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 retain = nullptr;
  PFN_cuDevicePrimaryCtxRelease_v11000 release = nullptr;
  PFN_cuCtxGetCurrent_v4000 current = nullptr;
  PFN_cuCtxPushCurrent_v4000 push = nullptr;
  PFN_cuCtxPopCurrent_v4000 pop = nullptr;
  cudaError_t error = cudaSuccess;  // of the look-up
};

namespace {

thread_local bool in_host_function = false;

/// The runtime also keeps the error of a call for cudaGetLastError, where the caller's own next
/// check would find it. One that was there before stays.
void forget(std::int32_t cuda_error) noexcept {
  if (cudaPeekAtLastError() == cuda_error) static_cast<void>(cudaGetLastError());
}

template <class Function>
void look_up(CudaDriverFunctions& driver, const char* symbol, Function& function) {
  if (driver.error != cudaSuccess) return;
  constexpr unsigned int kVersion = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult outcome{};
  driver.error =
      cudaGetDriverEntryPointByVersion(symbol, &found, kVersion, cudaEnableLegacyStream, &outcome);
  if (driver.error == cudaSuccess && found == nullptr) driver.error = cudaErrorInsufficientDriver;
  function = reinterpret_cast<Function>(found);
}

const CudaDriverFunctions& driver_functions() {
  static const CudaDriverFunctions functions = [] {
    CudaDriverFunctions driver;
    look_up(driver, "cuDeviceGet", driver.device);
    look_up(driver, "cuDevicePrimaryCtxRetain", driver.retain);
    look_up(driver, "cuDevicePrimaryCtxRelease", driver.release);
    look_up(driver, "cuCtxGetCurrent", driver.current);
    look_up(driver, "cuCtxPushCurrent", driver.push);
    look_up(driver, "cuCtxPopCurrent", driver.pop);
    return driver;
  }();
  return functions;
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

CudaContext::CudaContext(const CudaDriverFunctions& driver, std::int32_t ordinal,
                         std::int32_t device, CUctx_st* context) noexcept
    : driver_(driver), ordinal_(ordinal), device_(device), context_(context) {}

CudaContext::~CudaContext() { static_cast<void>(driver_.release(device_)); }

Result<std::unique_ptr<CudaContext>> CudaContext::open(std::int32_t ordinal) {
  const Result<std::int32_t> count = count_cuda_devices();
  if (!count) return count.status();
  if (ordinal < 0 || ordinal >= *count) {
    return invalid_argument(Resource::device, ordinal, 0, *count - 1);
  }
  const auto subject = static_cast<std::uint64_t>(ordinal);
  const CudaDriverFunctions& driver = driver_functions();
  if (driver.error != cudaSuccess) return device_error(driver.error, Resource::device, subject);
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUresult error = driver.device(&device, ordinal);
  if (error == CUDA_SUCCESS) error = driver.retain(&context, device);
  if (error != CUDA_SUCCESS) return device_error(error, Resource::device, subject);
  std::unique_ptr<CudaContext> opened(new (std::nothrow)
                                          CudaContext(driver, ordinal, device, context));
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
