#pragma once

/// @file
/// Clusters of thread blocks (CUDA programming guide, "Thread Block Clusters"): the device runs all
/// thread blocks of a cluster at the same time, so they may wait for each other. On architectures
/// without clusters the functions do nothing, and loads give zeros: no kernel is launched so there.

#include <cstdint>

namespace kvarena::kernels {

/// Returns the index of this thread block in its cluster.
__device__ __forceinline__ int rank_in_cluster() {
  int rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

/// Counts this thread as arrived. What it has written is visible to those that have waited.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
/// Waits until all threads of the cluster have arrived. Each thread arrives once before it waits.
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
/// Waits for all threads of the cluster; what they wrote is visible after that.
__device__ __forceinline__ void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

/// Returns the address of the variable of thread block `rank` that lies where `own` lies in this
/// one's shared memory.
__device__ __forceinline__ std::uint32_t address_in_cluster(const void* own, int rank) {
  auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(own));
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
  return address;
}
/// Loads from an address of address_in_cluster.
__device__ __forceinline__ float4 load_float4_in_cluster(std::uint32_t address) {
  float4 v = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
#endif
  return v;
}
__device__ __forceinline__ float2 load_float2_in_cluster(std::uint32_t address) {
  float2 v = make_float2(0.0F, 0.0F);
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(address)
               : "memory");
#endif
  return v;
}
__device__ __forceinline__ int load_int_in_cluster(std::uint32_t address) {
  int v = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
#endif
  return v;
}

}  // namespace kvarena::kernels
