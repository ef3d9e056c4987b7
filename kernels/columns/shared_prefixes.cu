#include "kernels/columns/shared_prefixes.h"

#include "kernels/columns/prefix_groups.cuh"
#include "kernels/common/launch_checks.h"
#include "kernels/common/launch_kernel.h"
#include "kernels/common/load_kernel.h"

#include <algorithm>
#include <bit>

namespace kvarena::kernels {
namespace find_prefixes {
namespace {

constexpr int kNumbers = 8;  // of each row, in shared memory, besides the table

/// Finds the shared prefixes of a step. The launch is one cluster.
__global__ void __launch_bounds__(kThreads)
    find_shared_prefixes(const __grid_constant__ FindPrefixesParams p,
                         const __grid_constant__ PrefixPlan plan, int most, int table_size,
                         int columns, int max_tokens) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(8) int memory[];
  __shared__ Shared shared;
  auto* const best = reinterpret_cast<long long*>(memory);
  int* const rows = memory + 2 * most;
  auto* const to = static_cast<char*>(p.prefixes);
  Search s{p,
           shared,
           columns,
           max_tokens,
           0,
           table_size,
           rank_in_cluster(),
           rows,
           rows + most,
           rows + 2 * most,
           rows + 3 * most,
           rows + 4 * most,
           rows + 5 * most,
           best,
           rows + 6 * most,
           reinterpret_cast<int*>(to + plan.leaders),
           reinterpret_cast<int*>(to + plan.depths)};
  list_rows(s, most);
  int rounds = 0;
  while (rounds < kPrefixRounds && find_leaders(s, rounds)) compare_rows(s, rounds++);
  sync_cluster();  // all of shared_tokens has been cleared
  if (s.rank != 0) return;
  choose_lengths(s, rounds);
  assign_groups(s, rounds);
  write_plan(s, order_members(s), to, plan);
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
  using find_prefixes::kNumbers;
  if (Status s = find_prefixes::check(params); !s) return s;
  const auto kernel = find_prefixes::find_shared_prefixes;
  const int most = std::max(1, std::min(params.num_rows, params.limits.shared_rows));
  const int table_size = static_cast<int>(std::bit_ceil(2 * static_cast<unsigned>(most)));
  const int bytes = (kNumbers * most + table_size) * static_cast<int>(sizeof(int));
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return launch_status(error);
  const LaunchShape shape{dim3(kBlocks), dim3(find_prefixes::kThreads),
                          static_cast<std::size_t>(bytes), kBlocks};
  return launch_status(launch_kernel(
      kernel, shape, false, stream, params, prefix_plan(params.limits), most, table_size,
      columns_shape(params.limits).columns, max_shared_tokens(params.limits)));
}

}  // namespace kvarena::kernels
