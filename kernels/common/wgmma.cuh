#pragma once

/// @file
/// Products of a warpgroup on Hopper's tensor cores with f32 accumulators: m64nNk16 on 16-bit types
/// and m64nNk32 on fp8 (PTX ISA, "wgmma.mma_async"). Thread `i` of the warpgroup has w = i / 32,
/// g = i % 32 / 4 and t = i % 4; its value d[4 * n + 2 * h + e] is in row 16 * w + 8 * h + g and
/// column 8 * n + 2 * t + e. Only kernels that are compiled for sm_90a may call these functions.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kvarena::kernels {

/// Orders accesses of registers and shared memory before the products that follow.
__device__ __forceinline__ void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Ends a group of products.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most the last `kGroups` groups are in flight.
template <int kGroups>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

/// Keeps the compiler from moving accesses of accumulators across this place: it does not know that
/// products in flight write them.
template <int kCount>
__device__ __forceinline__ void fence_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// The products with N columns of type `T`, __half or __nv_bfloat16:
/// - ss: d = a * b, plus d if `add`; a and b are descriptors of operands with K contiguous;
/// - rs_k: the same with a in registers: rows g, g + 8, g, g + 8 of columns 2t, 2t, 2t + 8, 2t + 8;
/// - rs_mn: d += a * b with a in registers and b with N contiguous;
/// - ss_mn: as ss, but a has M contiguous and b has N contiguous.
template <class T, int N>
struct Wgmma;

/// The products of e4m3 with N columns: rs_k as above, in which a word of `a` has columns 4t to
/// 4t + 3, or those 16 further. Sums of them keep about 14 bits of their largest term.
template <int N>
struct WgmmaFp8;

// Instructions and operand lists are literal text, so each N needs its own. DS_n is the text of 8 *
// n accumulators and D_n their operands. KVARENA_WGMMA gets N, n and the numbers of the operands
// after the accumulators.
// clang-format off
#define KVARENA_DS_1 "%0,%1,%2,%3,%4,%5,%6,%7"
#define KVARENA_DS_2 KVARENA_DS_1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define KVARENA_DS_3 KVARENA_DS_2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define KVARENA_DS_4 KVARENA_DS_3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define KVARENA_DS_5 KVARENA_DS_4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define KVARENA_DS_6 KVARENA_DS_5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define KVARENA_DS_7 KVARENA_DS_6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define KVARENA_DS_8 KVARENA_DS_7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define KVARENA_DS_9 KVARENA_DS_8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define KVARENA_DS_10 KVARENA_DS_9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define KVARENA_DS_11 KVARENA_DS_10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define KVARENA_DS_12 KVARENA_DS_11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define KVARENA_DS_13 KVARENA_DS_12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define KVARENA_DS_14 KVARENA_DS_13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define KVARENA_DS_15 KVARENA_DS_14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define KVARENA_DS_16 KVARENA_DS_15 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define KVARENA_D(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]),                   \
                     "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define KVARENA_D_1 KVARENA_D(0)
#define KVARENA_D_2 KVARENA_D_1, KVARENA_D(8)
#define KVARENA_D_3 KVARENA_D_2, KVARENA_D(16)
#define KVARENA_D_4 KVARENA_D_3, KVARENA_D(24)
#define KVARENA_D_5 KVARENA_D_4, KVARENA_D(32)
#define KVARENA_D_6 KVARENA_D_5, KVARENA_D(40)
#define KVARENA_D_7 KVARENA_D_6, KVARENA_D(48)
#define KVARENA_D_8 KVARENA_D_7, KVARENA_D(56)
#define KVARENA_D_9 KVARENA_D_8, KVARENA_D(64)
#define KVARENA_D_10 KVARENA_D_9, KVARENA_D(72)
#define KVARENA_D_11 KVARENA_D_10, KVARENA_D(80)
#define KVARENA_D_12 KVARENA_D_11, KVARENA_D(88)
#define KVARENA_D_13 KVARENA_D_12, KVARENA_D(96)
#define KVARENA_D_14 KVARENA_D_13, KVARENA_D(104)
#define KVARENA_D_15 KVARENA_D_14, KVARENA_D(112)
#define KVARENA_D_16 KVARENA_D_15, KVARENA_D(120)
#define KVARENA_WGMMA(T, type, N, n, r0, r1, r2, r3, r4, r5)                                       \
  template <>                                                                                      \
  struct Wgmma<T, N> {                                                                             \
    static constexpr int kCount = 8 * n;                                                           \
    static __device__ __forceinline__ void ss(float (&d)[kCount], std::uint64_t a,                 \
                                              std::uint64_t b, int add) {                          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type                 \
                   " {" KVARENA_DS_##n "}, %" #r0 ", %" #r1 ", p, 1, 1, 0, 0;\n}"                  \
                   : KVARENA_D_##n                                                                 \
                   : "l"(a), "l"(b), "r"(add));                                                    \
    }                                                                                              \
    static __device__ __forceinline__ void ss_mn(float (&d)[kCount], std::uint64_t a,              \
                                                 std::uint64_t b, int add) {                       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type                 \
                   " {" KVARENA_DS_##n "}, %" #r0 ", %" #r1 ", p, 1, 1, 1, 1;\n}"                  \
                   : KVARENA_D_##n                                                                 \
                   : "l"(a), "l"(b), "r"(add));                                                    \
    }                                                                                              \
    static __device__ __forceinline__ void rs_k(float (&d)[kCount], const std::uint32_t (&a)[4],   \
                                                std::uint64_t b, int add) {                        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r5 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type                 \
                   " {" KVARENA_DS_##n "}, {%" #r0 ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #r4           \
                   ", p, 1, 1, 0;\n}"                                                              \
                   : KVARENA_D_##n                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                \
    }                                                                                              \
    static __device__ __forceinline__ void rs_mn(float (&d)[kCount], const std::uint32_t (&a)[4],  \
                                                 std::uint64_t b) {                                \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type                 \
                   " {" KVARENA_DS_##n "}, {%" #r0 ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #r4           \
                   ", 1, 1, 1, 1;\n"                                                               \
                   : KVARENA_D_##n                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                          \
    }                                                                                              \
  };
#define KVARENA_WGMMA_FP8(N, n, r0, r1, r2, r3, r4, r5)                                            \
  template <>                                                                                      \
  struct WgmmaFp8<N> {                                                                             \
    static constexpr int kCount = 8 * n;                                                           \
    static __device__ __forceinline__ void rs_k(float (&d)[kCount], const std::uint32_t (&a)[4],   \
                                                std::uint64_t b, int add) {                        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r5 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3"                      \
                   " {" KVARENA_DS_##n "}, {%" #r0 ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #r4           \
                   ", p, 1, 1;\n}"                                                                 \
                   : KVARENA_D_##n                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                \
    }                                                                                              \
  };
KVARENA_WGMMA_FP8(16, 1, 8, 9, 10, 11, 12, 13)
KVARENA_WGMMA_FP8(32, 2, 16, 17, 18, 19, 20, 21)
KVARENA_WGMMA_FP8(112, 7, 56, 57, 58, 59, 60, 61)
KVARENA_WGMMA_FP8(128, 8, 64, 65, 66, 67, 68, 69)
KVARENA_WGMMA_FP8(144, 9, 72, 73, 74, 75, 76, 77)
#undef KVARENA_WGMMA_FP8
#define KVARENA_WGMMA_ALL(T, type)                                                                 \
  KVARENA_WGMMA(T, type, 16, 1, 8, 9, 10, 11, 12, 13)                                              \
  KVARENA_WGMMA(T, type, 32, 2, 16, 17, 18, 19, 20, 21)                                            \
  KVARENA_WGMMA(T, type, 48, 3, 24, 25, 26, 27, 28, 29)                                            \
  KVARENA_WGMMA(T, type, 64, 4, 32, 33, 34, 35, 36, 37)                                            \
  KVARENA_WGMMA(T, type, 80, 5, 40, 41, 42, 43, 44, 45)                                            \
  KVARENA_WGMMA(T, type, 96, 6, 48, 49, 50, 51, 52, 53)                                            \
  KVARENA_WGMMA(T, type, 112, 7, 56, 57, 58, 59, 60, 61)                                           \
  KVARENA_WGMMA(T, type, 128, 8, 64, 65, 66, 67, 68, 69)                                           \
  KVARENA_WGMMA(T, type, 144, 9, 72, 73, 74, 75, 76, 77)                                           \
  KVARENA_WGMMA(T, type, 192, 12, 96, 97, 98, 99, 100, 101)                                        \
  KVARENA_WGMMA(T, type, 256, 16, 128, 129, 130, 131, 132, 133)
KVARENA_WGMMA_ALL(__nv_bfloat16, "bf16")
KVARENA_WGMMA_ALL(__half, "f16")
#undef KVARENA_WGMMA_ALL
#undef KVARENA_WGMMA
#undef KVARENA_D
#undef KVARENA_D_1
#undef KVARENA_DS_1
#undef KVARENA_D_2
#undef KVARENA_DS_2
#undef KVARENA_D_3
#undef KVARENA_DS_3
#undef KVARENA_D_4
#undef KVARENA_DS_4
#undef KVARENA_D_5
#undef KVARENA_DS_5
#undef KVARENA_D_6
#undef KVARENA_DS_6
#undef KVARENA_D_7
#undef KVARENA_DS_7
#undef KVARENA_D_8
#undef KVARENA_DS_8
#undef KVARENA_D_9
#undef KVARENA_DS_9
#undef KVARENA_D_10
#undef KVARENA_DS_10
#undef KVARENA_D_11
#undef KVARENA_DS_11
#undef KVARENA_D_12
#undef KVARENA_DS_12
#undef KVARENA_D_13
#undef KVARENA_DS_13
#undef KVARENA_D_14
#undef KVARENA_DS_14
#undef KVARENA_D_15
#undef KVARENA_DS_15
#undef KVARENA_D_16
#undef KVARENA_DS_16
// clang-format on

}  // namespace kvarena::kernels
