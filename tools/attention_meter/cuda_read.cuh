#pragma once

/// @file
/// Kernels that only read, and the pseudo-random elements that a meter's memory is filled with.

#include "kvarena/base/latent_fp8.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvarena::meter {

inline constexpr int kReadThreads = 256;        ///< threads of a thread block that reads
inline constexpr int kReadOnceUnits = 2048;     ///< 16-byte units that a thread block reads
inline constexpr int kReadGrids[] = {2, 4, 8};  ///< thread blocks a multiprocessor, strided

/// Every thread block reads eight units a thread; as many thread blocks as that takes.
static __global__ void __launch_bounds__(kReadThreads)
    read_once(const uint4* in, std::size_t count, unsigned* sink) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kReadOnceUnits + threadIdx.x;
  uint4 v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = first + i * 256 < count ? __ldcs(in + first + i * 256) : make_uint4(0, 0, 0, 0);
  }
  unsigned all = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) all |= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  if (all == 0x12345678) *sink = all;
}

/// A grid that stays, four units a thread at a time.
static __global__ void __launch_bounds__(kReadThreads)
    read_strided(const uint4* in, std::size_t count, unsigned* sink) {
  unsigned all = 0;
  for (std::size_t base = blockIdx.x * std::size_t{1024}; base < count;
       base += gridDim.x * std::size_t{1024}) {
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::size_t at = base + i * 256 + threadIdx.x;
      v[i] = at < count ? __ldcs(in + at) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) all |= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  if (all == 0x12345678) *sink = all;
}

__device__ inline void store(__nv_bfloat16* out, float value) { *out = __float2bfloat16(value); }
__device__ inline void store(__half* out, float value) { *out = __float2half(value); }
__device__ inline void store(__nv_fp8_e4m3* out, float value) { *out = __nv_fp8_e4m3(value); }

/// Returns number `i` of a sequence of about normal ones.
__device__ inline float normal_number(std::size_t i, unsigned long long seed) {
  unsigned long long z = (i + 1) * 0x9E3779B97F4A7C15ULL + seed;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  const float sum = static_cast<float>((z & 0xffff) + ((z >> 16) & 0xffff) + ((z >> 32) & 0xffff));
  return (sum / 65536.0F - 1.5F) * 2.0F;
}

/// About normal: the sum of three uniform numbers, mean 0, variance 1.
template <class T>
__global__ void fill_normal(T* out, std::size_t count, unsigned long long seed) {
  std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  for (; i < count; i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    store(out + i, normal_number(i, seed));
  }
}

/// Does the same for rows in the format latent_fp8.
static __global__ void fill_latents(std::byte* rows, std::size_t count, unsigned long long seed) {
  constexpr float kScale = 1.0F / 64;
  std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  for (; i < count * kLatentFp8Dim; i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    std::byte* const row = rows + i / kLatentFp8Dim * kLatentFp8Bytes;
    const auto dim = static_cast<std::int32_t>(i % kLatentFp8Dim);
    std::byte* const at = row + latent_fp8_byte(dim);
    const float value = normal_number(i, seed);
    if (dim >= kLatentFp8ValueDim) {
      store(reinterpret_cast<__nv_bfloat16*>(at), value);
      continue;
    }
    store(reinterpret_cast<__nv_fp8_e4m3*>(at), value / kScale);
    if (dim % kLatentFp8Run != 0) continue;
    reinterpret_cast<float*>(row + kLatentFp8ScalesAt)[dim / kLatentFp8Run] = kScale;
  }
}

}  // namespace kvarena::meter
