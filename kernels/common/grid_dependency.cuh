#pragma once

/// @file
/// Programmatic dependent launch (CUDA programming guide). A kernel launched with that attribute
/// may begin while the kernel before it on the stream is finishing. Kernels call both functions in
/// this order, so that a kernel never begins before the kernel two places ahead of it has
/// completed. Both functions do nothing on architectures without the feature.

namespace kvarena::kernels {

/// Waits until the kernel before this one has completed and its writes are visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Allows the kernel after this one to begin.
__device__ __forceinline__ void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace kvarena::kernels
