#include "kernels/columns/shared_prefixes.h"

#include "kernels/columns/prefix_find.cuh"
#include "kernels/common/launch_checks.h"
#include "kernels/common/launch_kernel.h"
#include "kernels/common/load_kernel.h"

namespace kvarena::kernels {
namespace find_prefixes {
namespace {

/// Finds the shared prefixes of a step. The launch is one cluster.
__global__ void __launch_bounds__(kThreads)
    find_shared_prefixes(const __grid_constant__ FindPrefixesParams p,
                         const __grid_constant__ PrefixPlan plan, SearchSize size) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(8) int memory[];
  __shared__ Shared shared;
  search_step(p, plan, size, shared, memory);
#else
  __trap();
#endif
}

/// Checks whether `p` can be searched.
Status check(const FindPrefixesParams& p) noexcept {
  if (Status s = check_columns_limits(p.limits); !s) return s;
  if (Status s = in_range(Resource::num_sequences, p.limits.shared_rows, 1, p.limits.max_rows);
      !s) {
    return s;
  }
  if (Status s = in_range(Resource::num_sequences, p.num_rows, 0, 0x7fffffff); !s) return s;
  if (Status s = in_range(Resource::window, p.window_tokens, 0, 0x7fffffff); !s) return s;
  if (Status s = in_range(Resource::token_index, p.first_q, 0, 0x7fffffff); !s) return s;
  constexpr std::int32_t kMostTokens = 1 << 20;
  if (Status s = in_range(Resource::num_tokens, p.saved_sixteenths, 1, 16); !s) return s;
  if (Status s = in_range(Resource::num_tokens, p.own_sixteenths, 0, 16); !s) return s;
  if (Status s = in_range(Resource::num_tokens, p.member_tokens, 0, kMostTokens); !s) return s;
  if (Status s = in_range(Resource::num_tokens, p.group_tokens, 0, kMostTokens); !s) return s;
  if (p.block_size < kTileTokens || p.block_size % kTileTokens != 0) {
    return unsupported_by(SupportedList::decode_block_sizes, Resource::block_size, p.block_size);
  }
  if (p.num_rows > 0) {
    if (Status s = aligned_pointer(p.seq_lens, alignof(std::int32_t)); !s) return s;
    if (Status s = aligned_pointer(p.block_tables, alignof(BlockId)); !s) return s;
    if (Status s = aligned_pointer(p.shared_tokens, alignof(std::int32_t)); !s) return s;
  }
  if (!is_aligned(p.q_offsets, alignof(std::int64_t))) return aligned_pointer(p.q_offsets, 8);
  if (Status s = aligned_pointer(p.prefixes, 256); !s) return s;
  const std::int64_t needed = prefix_plan(p.limits).bytes;
  if (p.prefixes_bytes >= needed) return {};
  return limit_exceeded(Resource::workspace, static_cast<std::uint64_t>(needed),
                        static_cast<std::uint64_t>(p.prefixes_bytes), Option::none);
}

}  // namespace
}  // namespace find_prefixes

Status load_find_prefixes() noexcept { return load_kernels(find_prefixes::find_shared_prefixes); }

Status launch_find_prefixes(const FindPrefixesParams& params, cudaStream_t stream) noexcept {
  using find_prefixes::kBlocks;
  if (Status s = find_prefixes::check(params); !s) return s;
  const auto kernel = find_prefixes::find_shared_prefixes;
  const find_prefixes::SearchSize size = find_prefixes::search_size(params);
  const int bytes = find_prefixes::numbers_of(size) * static_cast<int>(sizeof(int));
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return launch_status(error);
  const LaunchShape shape{dim3(kBlocks), dim3(find_prefixes::kThreads),
                          static_cast<std::size_t>(bytes), kBlocks};
  return launch_status(
      launch_kernel(kernel, shape, false, stream, params, prefix_plan(params.limits), size));
}

}  // namespace kvarena::kernels
