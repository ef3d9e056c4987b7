#pragma once

/// @file
/// Tensor core operations on 16-bit types: m16n8k16 with f32 accumulators, and loads of its
/// operands from shared memory (PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix"). In a
/// fragment, g = lane / 4 and t = lane % 4. The four values of an accumulator are in rows g, g, g +
/// 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace kvarena::kernels {

/// Computes c += a * b. `T` is __half or __nv_bfloat16.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Loads four 8x8 matrices. Lane `l` passes the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

/// Loads four 8x8 matrices and transposes each.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void* row) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

/// Packs two neighbouring elements of a row, the first in the low half.
template <class T>
__device__ __forceinline__ unsigned pack_pair(float low, float high) {
  unsigned bits = 0;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    bits = *reinterpret_cast<const unsigned*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    bits = *reinterpret_cast<const unsigned*>(&pair);
  }
  return bits;
}

}  // namespace kvarena::kernels
