#pragma once

/// @file
/// Sixteen-byte loads and stores of data that is used once.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvarena::kernels {

/// Loads 16 bytes that this kernel does not write, without keeping them in the L1. `from` is
/// 16-byte aligned.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

/// Stores 16 bytes to 16-byte aligned memory.
__device__ __forceinline__ void store(void* to, const uint4& v) { *static_cast<uint4*>(to) = v; }

/// Stores 16 bytes that are not read again soon. The L2 writes them out first, in longer bursts.
__device__ __forceinline__ void store_once(void* to, const uint4& v) {
  __stcs(static_cast<uint4*>(to), v);
}

}  // namespace kvarena::kernels
