#pragma once

/// @file
/// The launch of an instance of the columns kernel. Each small source file compiles the instances
/// of one head_dim; columns.cu has the table.

#include "kernels/columns/columns.cuh"
#include "kernels/columns/columns_members.cuh"
#include "kernels/common/launch_kernel.h"
#include "kernels/common/load_kernel.h"

#include <algorithm>

namespace kvarena::kernels::columns {

/// Returns the thread blocks that combine rows with a prefix: one for each row and KV head, and not
/// more than run at once.
inline int member_blocks(const Launch& launch) {
  const ColumnsLimits& limits = launch.params.limits;
  const std::int64_t items =
      std::int64_t{std::min(launch.params.num_rows, limits.shared_rows)} * limits.num_kv_heads;
  return static_cast<int>(std::min(items, std::int64_t{limits.num_sms} * 4));
}

/// Launches one variant of an instance, and behind it the kernel that combines rows with a prefix.
template <class C>
cudaError_t launch_variant(const Launch& launch, bool overlap, cudaStream_t stream) {
  static_assert(sizeof(Shared<C>) * C::kPerSm <= 226 * 1024);
  constexpr int kBytes = static_cast<int>(sizeof(Shared<C>));
  const auto kernel = columns_kernel<C>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const LaunchShape shape{dim3(static_cast<unsigned>(launch.workspace.blocks)), dim3(C::kThreads),
                          kBytes};
  const cudaError_t launched = launch_kernel(kernel, shape, overlap, stream, launch);
  if constexpr (C::kHasTiles) {
    if (launched != cudaSuccess || !launch.has_members()) return launched;
    // The kernel before this one is ours, and it waits for the one in front of it.
    const LaunchShape members{dim3(static_cast<unsigned>(member_blocks(launch))),
                              dim3(kMemberThreads)};
    return launch_kernel(combine_members<C>, members, true, stream, launch);
  }
  return launched;
}

/// Launches the variant that the parameters need.
template <class T, int D, ColumnsKind kKind>
cudaError_t launch_instance(const Launch& launch, bool overlap, cudaStream_t stream) {
  if (launch.params.soft_cap > 0.0F) {
    return launch_variant<Config<T, D, kKind, true>>(launch, overlap, stream);
  }
  return launch_variant<Config<T, D, kKind, false>>(launch, overlap, stream);
}

/// Loads both variants of an instance.
template <class T, int D, ColumnsKind kKind>
Status load_instance() noexcept {
  using Plain = Config<T, D, kKind, false>;
  using Capped = Config<T, D, kKind, true>;
  if (Status s = load_kernels(columns_kernel<Plain>, columns_kernel<Capped>); !s) return s;
  if constexpr (Plain::kHasTiles) {
    return load_kernels(combine_members<Plain>, combine_members<Capped>);
  }
  return {};
}

}  // namespace kvarena::kernels::columns
