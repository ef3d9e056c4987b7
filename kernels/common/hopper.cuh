#pragma once

/// @file
/// The instructions of Hopper's asynchronous units: barriers in shared memory that count arrivals
/// and bytes, bulk copies, named barriers, the exchange of registers between warpgroups, and
/// descriptors of matrix operands (PTX ISA, "mbarrier", "cp.async.bulk", "barrier", "setmaxnreg",
/// "Matrix descriptor"). Only kernels that are compiled for sm_90a may call these functions.

#include <cuda_runtime.h>

#include <cstdint>

namespace kvarena::kernels {

/// A barrier in shared memory. A phase ends when the expected arrivals and bytes have come.
using Barrier = std::uint64_t;

/// Returns the address of shared memory as instructions take it.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Sets up a barrier for `arrivals` arrivals a phase.
__device__ __forceinline__ void init_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

/// Makes barriers that this thread has set up visible to bulk copies. A barrier of the thread block
/// makes them visible to its other threads.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives once.
__device__ __forceinline__ void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// How often a warp arrives for all its lanes. Once is enough: __syncwarp orders what the lanes did
/// before the arrival. compute-sanitizer's racecheck does not follow that step from lane to lane,
/// and reports a hazard for each one. A build for racecheck lets each lane arrive for itself
/// (CMake: KVARENA_RACECHECK).
#ifdef KVARENA_RACECHECK
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif

/// Arrives kWarpArrivals times for what the lanes of this warp did before. All lanes call it.
__device__ __forceinline__ void arrive_as_warp(Barrier* barrier, int lane) {
  __syncwarp();
  if (kWarpArrivals > 1 || lane == 0) arrive(barrier);
}

/// Arrives once and adds `bytes` to the bytes that the phase waits for.
__device__ __forceinline__ void arrive_and_expect(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

/// Arrives `arrivals` times.
__device__ __forceinline__ void arrive_many(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

/// Adds `bytes` to the bytes that the phase waits for.
__device__ __forceinline__ void expect(Barrier* barrier, int bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

/// Waits until the phase of this parity has ended. The first phase has parity 0; the phase before
/// it counts as ended.
__device__ __forceinline__ void wait(Barrier* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nW%=: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra D%=;\n"
      "bra W%=;\nD%=:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Copies `bytes` from global to shared memory; they count for the barrier's phase. Both addresses
/// and `bytes` are multiples of 16.
__device__ __forceinline__ void copy_bulk(std::uint32_t to, const void* from, int bytes,
                                          Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

/// Asks the L2 for `bytes` of global memory, a multiple of 16 at a multiple of 16.
__device__ __forceinline__ void prefetch_bulk(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/// Returns the cache hint of data that is read once: the L2 gives its place away first.
__device__ __forceinline__ std::uint64_t evict_first_hint() {
  std::uint64_t hint;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(hint));
  return hint;
}

/// copy_bulk with a cache hint.
__device__ __forceinline__ void copy_bulk(std::uint32_t to, const void* from, int bytes,
                                          Barrier* barrier, std::uint64_t hint) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(hint)
      : "memory");
}

/// Orders this thread's writes to shared memory before later reads of the asynchronous units. The
/// threads that start those reads must be told by a barrier after this.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Waits until `threads` threads have come to named barrier `kId`. A constant id keeps the compiler
/// from reserving all sixteen barriers. Id 0 is __syncthreads.
template <int kId>
__device__ __forceinline__ void sync_named(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "r"(threads) : "memory");
}

/// Counts as having come to named barrier `kId`, without waiting.
template <int kId>
__device__ __forceinline__ void arrive_named(int threads) {
  asm volatile("bar.arrive %0, %1;" ::"n"(kId), "r"(threads) : "memory");
}

/// Lowers the registers of each thread of a warpgroup to `kRegisters`, a multiple of 8. All its
/// warps call it.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Raises them, and waits until other warpgroups have given enough.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// How 16-byte chunks are exchanged in an operand: the pieces of the pool's chunked order
/// (tile_order.hpp) are its rows.
enum class Swizzle : unsigned { bytes_64 = 2, bytes_32 = 3 };

/// Returns the low word of a descriptor. `leading_bytes` leads to the next atom along the
/// contiguous dimension; an operand with K contiguous does not use it.
__device__ __forceinline__ std::uint32_t operand_base(std::uint32_t shared, int leading_bytes) {
  return ((shared & 0x3FFFF) >> 4) | (static_cast<std::uint32_t>(leading_bytes >> 4) << 16);
}

/// Returns the descriptor of the operand that begins `step_bytes` after `base`. `kStrideBytes`
/// leads to the next eight rows (K contiguous) or the next eight of K.
template <int kStrideBytes, Swizzle kSwizzle>
__device__ __forceinline__ std::uint64_t operand_at(std::uint32_t base, int step_bytes) {
  constexpr unsigned kHigh =
      static_cast<unsigned>(kStrideBytes >> 4) | (static_cast<unsigned>(kSwizzle) << 30);
  std::uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};"
      : "=l"(descriptor)
      : "r"(base + (step_bytes >> 4)), "n"(static_cast<int>(kHigh)));
  return descriptor;
}

}  // namespace kvarena::kernels
