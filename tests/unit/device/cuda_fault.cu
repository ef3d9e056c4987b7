#include "unit/device/cuda_fault.hpp"

#include <cuda_runtime.h>

namespace kvarena::test {
namespace {

__global__ void write_to(int* address) { *address = 1; }

}  // namespace

std::int32_t launch_illegal_write(void* native_stream) {
  write_to<<<1, 1, 0, static_cast<cudaStream_t>(native_stream)>>>(reinterpret_cast<int*>(64));
  return cudaGetLastError();
}

}  // namespace kvarena::test
