#pragma once

/// @file
/// Finds rows whose tables begin with the same blocks, so that attention reads these blocks once
/// for all of them. `launch_find_prefixes` runs once a step, before the schedules. A row with a
/// prefix is served by the columns kernel whatever its number of query tokens; the schedule of
/// decode skips it.
///
/// Rows of a group need not be neighbours. The first row of a group is its leader. The shared
/// tokens of a group are whole blocks that have been compared entry by entry with the leader's, and
/// all of them are older than the query tokens of every member. They are shared only when this
/// saves time: rows that are read by themselves find the tokens that others have read in the L2,
/// and each member has a part of its own to begin, to end and to combine. Where groups lie within a
/// group, each row takes part in one of them: the choice is the one that saves the most time. The
/// same tables and lengths give the same groups.

#include "kernels/columns/columns_limits.h"
#include "kernels/columns/columns_workspace.h"
#include "kvarena/base/ids.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace kvarena::kernels {

/// The input and output of the search. Device pointers.
struct FindPrefixesParams {
  ColumnsLimits
      limits;  ///< of the columns kernel; shared_rows is not 0. The first shared_rows rows
               ///< with 1 .. q_len query tokens that fit a thread block are looked at
  const std::int32_t* seq_lens = nullptr;   ///< [num_rows] as ColumnsScheduleParams
  const std::int64_t* q_offsets = nullptr;  ///< [num_rows + 1] or null: as there
  std::int64_t first_q = 0;                 ///< as there
  const std::int32_t* row_slots = nullptr;  ///< [num_rows] or null: as there
  std::int32_t num_rows = 0;                ///< of the batch
  std::int32_t window_tokens = 0;           ///< with a window nothing is shared
  std::int32_t block_size = 16;             ///< tokens, a multiple of 16
  const BlockId* block_tables = nullptr;    ///< [.., table_stride] rows of block ids
  std::int64_t table_stride = 0;            ///< entries from one row to the next
  // The times of a choice, in those of a token of a KV head that is read from memory.
  std::int32_t saved_sixteenths = 7;  ///< saved by a token that is not read from the L2, 1 .. 16
                                      ///< sixteenths
  std::int32_t own_sixteenths = 0;    ///< cost of a member's token that is not shared, beside the
                                      ///< time of decode attention, 0 .. 16 sixteenths
  std::int32_t member_tokens = 256;   ///< cost of a member's own part
  std::int32_t group_tokens = 1024;   ///< cost of the shared parts of a group
  std::int32_t* shared_tokens = nullptr;  ///< [num_rows] written: tokens of the row's prefix, or 0
  void* prefixes = nullptr;               ///< written: groups and members, 256-byte aligned
  std::int64_t prefixes_bytes = 0;        ///< at least shared_prefixes_bytes(limits)
};
static_assert(std::is_trivially_copyable_v<FindPrefixesParams>);

/// Queues the search: one kernel of a few thread blocks. Returns invalid_argument or unsupported
/// with the limit, limit_exceeded (workspace), or device_error when the launch fails.
Status launch_find_prefixes(const FindPrefixesParams& params, cudaStream_t stream) noexcept;

/// Loads the kernel. Returns device_error.
Status load_find_prefixes() noexcept;

}  // namespace kvarena::kernels
