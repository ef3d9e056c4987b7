#pragma once

/// @file
/// Conversion of elements to and from f32. Rounds to nearest, ties to even; fp8 saturates to its
/// largest value.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/latent_fp8.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>

namespace kvarena::kernels {

/// The bits of an fp8 e4m3 number.
struct Fp8 {
  __nv_fp8_storage_t bits;
};

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_f32(Fp8 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
}

/// Returns the nearest value of type `T`.
template <class T>
__device__ __forceinline__ T from_f32(float x);
template <>
__device__ __forceinline__ float from_f32<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half from_f32<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ Fp8 from_f32<Fp8>(float x) {
  return {__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
}

/// Reads one element of a type that is known at run time.
__device__ inline float load_f32(const void* from, DType dtype) {
  switch (dtype) {
    case DType::f16: return to_f32(*static_cast<const __half*>(from));
    case DType::bf16: return to_f32(*static_cast<const __nv_bfloat16*>(from));
    case DType::fp8_e4m3: return to_f32(*static_cast<const Fp8*>(from));
    default: return *static_cast<const float*>(from);
  }
}

/// Reads element `dim` of a row in the format latent_fp8.
__device__ inline float load_latent_fp8(const std::byte* row, int dim) {
  const void* const at = row + latent_fp8_byte(dim);
  if (dim >= kLatentFp8ValueDim) return to_f32(*static_cast<const __nv_bfloat16*>(at));
  const auto* const scales = reinterpret_cast<const float*>(row + kLatentFp8ScalesAt);
  return to_f32(*static_cast<const Fp8*>(at)) * scales[dim / kLatentFp8Run];
}

/// Writes one element of a type that is known at run time.
__device__ inline void store_f32(void* to, DType dtype, float x) {
  switch (dtype) {
    case DType::f16: *static_cast<__half*>(to) = from_f32<__half>(x); break;
    case DType::bf16: *static_cast<__nv_bfloat16*>(to) = from_f32<__nv_bfloat16>(x); break;
    case DType::fp8_e4m3: *static_cast<Fp8*>(to) = from_f32<Fp8>(x); break;
    default: *static_cast<float*>(to) = x; break;
  }
}

}  // namespace kvarena::kernels
