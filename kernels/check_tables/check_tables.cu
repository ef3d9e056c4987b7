#include "kernels/check_tables/check_tables.h"

#include "kernels/common/launch_checks.h"

#include <algorithm>

namespace kvarena::kernels {
namespace {

constexpr int kThreads = 256;

/// Finds the first wrong entry. A thread block takes rows, a thread takes entries.
__global__ void find_first_wrong(const __grid_constant__ AttentionParams p, TableReport* report) {
  for (std::int32_t row = static_cast<std::int32_t>(blockIdx.x); row < p.batch.num_rows;
       row += static_cast<std::int32_t>(gridDim.x)) {
    const std::int64_t length = p.batch.seq_lens[row];
    const std::int64_t queries =
        p.q_offsets != nullptr ? p.q_offsets[row + 1] - p.q_offsets[row] : 1;
    if (length <= 0 || queries <= 0) continue;
    const std::int64_t unseen =
        p.window_tokens > 0 ? length - queries + 1 - p.window_tokens : std::int64_t{0};
    const std::int64_t first = (unseen > 0 ? unseen : 0) / p.kv.block_size;
    const std::int64_t end = (length + p.kv.block_size - 1) / p.kv.block_size;
    for (std::int64_t j = first + threadIdx.x; j < end; j += kThreads) {
      const std::int32_t block = p.batch.tables.block(row, j).value;
      if (block >= 0 && block < p.kv.num_blocks) continue;
      const auto place = static_cast<unsigned long long>(row) << 32 | static_cast<unsigned>(j);
      atomicMin(reinterpret_cast<unsigned long long*>(&report->place), place);
      break;
    }
  }
}

/// Reads the entry at the place that was found.
__global__ void read_wrong_value(const __grid_constant__ AttentionParams p, TableReport* report) {
  if (report->place == kNoPlace) return;
  const auto row = static_cast<std::int32_t>(report->place >> 32);
  report->value = p.batch.tables.block(row, static_cast<std::uint32_t>(report->place)).value;
}

}  // namespace

Status launch_check_tables(const AttentionParams& p, TableReport* report,
                           cudaStream_t stream) noexcept {
  if (Status s = not_null(report); !s) return s;
  if (!is_aligned(report, alignof(TableReport))) return in_range(Resource::alignment, 1, 0, 0);
  if (Status s = launch_status(cudaMemsetAsync(report, 0xFF, sizeof *report, stream)); !s) return s;
  if (p.batch.num_rows <= 0) return {};
  for (const void* pointer : {static_cast<const void*>(p.batch.seq_lens),
                              static_cast<const void*>(p.batch.tables.entries),
                              static_cast<const void*>(p.batch.tables.row_offsets)}) {
    if (Status s = not_null(pointer); !s) return s;
  }
  const int blocks = std::min(p.batch.num_rows, 1024);
  find_first_wrong<<<blocks, kThreads, 0, stream>>>(p, report);
  read_wrong_value<<<1, 1, 0, stream>>>(p, report);
  return launch_status(cudaGetLastError());
}

}  // namespace kvarena::kernels
