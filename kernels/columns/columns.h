#pragma once

/// @file
/// Attention with many query columns on Hopper: up to 128 query columns a row and KV head over
/// paged K and V in `chunked` tile order, bound by memory. K and V of fp8_e4m3 are converted to f16
/// in shared memory. A query column is one query token with one query head. It serves the
/// verification of speculated tokens and large groups. There are two launches, as for decode:
/// `launch_columns_schedule` runs once a step and reads the lengths on the device; `launch_columns`
/// runs for each layer with that schedule. Neither allocates, synchronises, or reads lengths on the
/// host, so a captured graph stays right while sequences grow, join and leave. The kernel needs
/// compute capability 9.0.
///
/// The schedule cuts the K and V of all rows evenly over the thread blocks that fill the device.
/// The thread block whose part of an item arrives last combines its parts, always in their order.
/// No thread block waits for another. The same inputs give the same bits. With fixed parts, the
/// bits of a row do not depend on the other rows of the batch.
///
/// With head_dim kLatentDim it serves latents (MLA) of bf16 or fp8_e4m3, or in the format
/// latent_fp8, which lies in rows order: `value` equals `key`, V is the leading kLatentValueDim
/// elements of K, rows have any number of query columns up to kMaxLatentColumns, and there is no
/// window, soft cap or shared prefix. A launch is then two kernels: the second one combines the
/// parts of cut items.

#include "kernels/columns/columns_limits.h"
#include "kernels/params.h"
#include "kvarena/base/dtype.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/result.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace kvarena::kernels {

/// The input of a schedule. Device pointers. Outputs of skipped rows are not written.
struct ColumnsScheduleParams {
  ColumnsLimits limits;
  std::int32_t min_q_len = 1;  ///< rows of the class have min_q_len .. max_q_len query tokens;
                               ///< all other rows are skipped
  std::int32_t max_q_len = 0;  ///< 0: limits.q_len. Only of latents it may be more, if limits.q_len
                               ///< is kRunTokens: at most kMaxRunsTokens
  const std::int32_t* seq_lens = nullptr;  ///< [num_rows] tokens of each row, with the query tokens
  const std::int64_t* q_offsets = nullptr;  ///< [num_rows + 1] first query token of each row; null:
                                            ///< each row has limits.q_len
  std::int64_t first_q = 0;                 ///< without q_offsets: first query token of row 0
  const std::int32_t* row_slots = nullptr;  ///< [num_rows] table row of each row; -1: skip the row;
                                            ///< null: row r has table row r
  std::int32_t num_rows = 0;                ///< of the batch, in any order; those of the class are
                                            ///< at most limits.max_rows, and later ones are skipped
  std::int32_t window_tokens = 0;           ///< sliding window, 0: none
  const std::int32_t* shared_tokens = nullptr;  ///< [num_rows] written by find_prefixes, or null.
                                                ///< Rows with some are of the class
  const void* prefixes = nullptr;  ///< written with shared_tokens; not used with a window or fixed
                                   ///< parts: then each row is read by itself
  bool fixed_parts = false;        ///< cut each row at multiples of a number of tokens that does
                                   ///< not depend on the batch; needs limits.fixed_tokens
  void* workspace = nullptr;       ///< 256-byte aligned; its content does not matter
  std::int64_t workspace_bytes = 0;  ///< at least columns_workspace_bytes(limits)
};

/// Attention of one layer. Device pointers; shapes in C order. The query tokens of a row are its
/// last ones, and a query token sees the tokens up to itself.
struct ColumnsParams {
  ColumnsLimits limits;          ///< as scheduled
  const void* q = nullptr;       ///< [total_q, num_q_heads, head_dim] dtype, 16-byte aligned
  void* out = nullptr;           ///< [total_q, num_q_heads, value dim] dtype, 16-byte aligned
  float* lse = nullptr;          ///< [total_q, num_q_heads] log-sum-exp, natural logarithm; or null
  const float* sinks = nullptr;  ///< [num_q_heads] logits of the attention sinks; or null
  const std::uint64_t* tree_mask =
      nullptr;                            ///< [total_q] draft tree as in AttentionParams; or null
  const void* key = nullptr;              ///< block 0 of the layer's K
  const void* value = nullptr;            ///< block 0 of the layer's V
  std::int64_t block_stride = 0;          ///< bytes from one block to the next
  std::int64_t head_stride = 0;           ///< bytes from one head's tiles to the next
  std::int64_t value_head_stride = 0;     ///< the same of V; 0: that of K
  std::int32_t block_size = 16;           ///< tokens, a multiple of 16
  const BlockId* block_tables = nullptr;  ///< [.., table_stride] rows of block ids; entries
                                          ///< before a window and past a row's length are not
                                          ///< read
  std::int64_t table_stride = 0;          ///< entries from one row to the next
  std::int32_t num_rows = 0;              ///< as scheduled; 0: nothing is launched
  std::int32_t window_tokens = 0;         ///< as scheduled
  const void* prefixes = nullptr;         ///< as scheduled
  DType dtype = DType::bf16;  ///< of q and out: limits.kv_dtype; bf16 or f16 over fp8_e4m3; of
                              ///< latents bf16
  QuantScales scales = {};    ///< of K and V in fp8_e4m3; device pointers
  float scale = 1.0F;         ///< of the logits, positive
  float soft_cap = 0.0F;      ///< of the logits, 0: none; not with tree_mask
  void* workspace = nullptr;  ///< as scheduled
  std::int64_t workspace_bytes = 0;   ///< as scheduled
  std::int64_t q_token_stride = 0;    ///< bytes, a multiple of 16; 0: dense
  std::int64_t out_token_stride = 0;  ///< bytes, a multiple of 16; 0: dense
};

static_assert(std::is_trivially_copyable_v<ColumnsParams>);
static_assert(std::is_trivially_copyable_v<ColumnsScheduleParams>);

/// Loads all kernels for K and V of this type and head_dim, the schedule, and the search for shared
/// prefixes. Returns device_error.
Status load_columns(DType kv_dtype, std::int32_t head_dim) noexcept;
/// Loads the schedule alone. Returns device_error.
Status load_columns_schedule() noexcept;

/// Queues the schedule of a step: one small thread block. Returns invalid_argument or unsupported
/// with the limit, limit_exceeded (workspace), or device_error when the launch fails.
Status launch_columns_schedule(const ColumnsScheduleParams& params, cudaStream_t stream) noexcept;

/// Queues one layer. With `overlap` the launch is programmatic: it may begin while the kernel
/// before it on the stream is finishing. Before that kernel has completed, it reads the schedule,
/// the tables, and K and V of tokens older than the query tokens. The kernel before may therefore
/// be the append of the query tokens. It must not be the kernel that wrote the schedule or the
/// tables, and not a copy of blocks. Returns invalid_argument, limit_exceeded (workspace),
/// unsupported (head_dim, dtype, block_size, soft_cap with a tree, device) or device_error.
Status launch_columns(const ColumnsParams& params, bool overlap, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
