#include "device/cuda_driver.hpp"

namespace kvarena {
namespace {

/// Looks up a function of the driver. The first failure stays in `driver.error`.
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

}  // namespace

const CudaDriverFunctions& cuda_driver_functions() {
  static const CudaDriverFunctions functions = [] {
    CudaDriverFunctions driver;
    look_up(driver, "cuDeviceGet", driver.device);
    look_up(driver, "cuDevicePrimaryCtxRetain", driver.retain);
    look_up(driver, "cuDevicePrimaryCtxRelease", driver.release);
    look_up(driver, "cuCtxGetCurrent", driver.current);
    look_up(driver, "cuCtxPushCurrent", driver.push);
    look_up(driver, "cuCtxPopCurrent", driver.pop);
    look_up(driver, "cuPointerGetAttributes", driver.pointer_attributes);
    look_up(driver, "cuMemGetAddressRange", driver.mapping);
    look_up(driver, "cuDeviceGetAttribute", driver.attribute);
    look_up(driver, "cuStreamWriteValue32", driver.write_32);
    look_up(driver, "cuStreamWriteValue64", driver.write_64);
    return driver;
  }();
  return functions;
}

}  // namespace kvarena
