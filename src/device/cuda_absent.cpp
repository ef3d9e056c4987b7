// The CUDA device in a build without CUDA. Every call says that CUDA is missing.

#include "base/out_of_memory.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <new>

namespace kvarena {
namespace {

constexpr const char* kAdvice =
    "this build of kvarena has no CUDA: configure it with -DKVARENA_CUDA=ON on a machine with the "
    "CUDA toolkit";

}  // namespace

bool is_built_with_cuda() noexcept { return false; }

CudaDeviceList list_devices() {
  CudaDeviceList list;
  list.status = unsupported(Resource::device);
  list.error = kAdvice;
  return list;
}

CudaDeviceList identify_devices() { return list_devices(); }

std::string describe_cuda(const Status& status) noexcept try {
  std::string text = describe(status);
  if (status.code == StatusCode::unsupported && status.resource == Resource::device) {
    text += std::string("\n") + kAdvice;
  }
  return text;
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(const CudaDeviceOptions& options) {
  return unsupported(Resource::device, static_cast<std::uint64_t>(options.ordinal));
}

}  // namespace kvarena
