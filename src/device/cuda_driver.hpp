#pragma once

/// @file
/// Functions of the driver that the runtime does not have. They are looked up when they are first
/// needed, so that nothing links to the driver. None of them allocates or frees memory.

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

namespace kvarena {

/// Pointers to the functions. The types' names contain the versions of their signatures.
struct CudaDriverFunctions {
  PFN_cuDeviceGet_v2000 device = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 retain = nullptr;
  PFN_cuDevicePrimaryCtxRelease_v11000 release = nullptr;
  PFN_cuCtxGetCurrent_v4000 current = nullptr;
  PFN_cuCtxPushCurrent_v4000 push = nullptr;
  PFN_cuCtxPopCurrent_v4000 pop = nullptr;
  PFN_cuPointerGetAttributes_v7000 pointer_attributes = nullptr;
  PFN_cuMemGetAddressRange_v3020 mapping = nullptr;
  PFN_cuDeviceGetAttribute_v2000 attribute = nullptr;
  PFN_cuStreamWriteValue32_v11070 write_32 = nullptr;
  PFN_cuStreamWriteValue64_v11070 write_64 = nullptr;
  cudaError_t error = cudaSuccess;  ///< of the look-up
};

/// Returns the functions, which are looked up once. `error` says whether that succeeded.
const CudaDriverFunctions& cuda_driver_functions();

}  // namespace kvarena
