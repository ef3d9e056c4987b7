#pragma once

/// @file
/// Decode attention on CUDA: a few query tokens a sequence over paged K and V in `chunked` tile
/// order. There are two launches. `launch_decode_schedule` runs once a step and reads the lengths
/// on the device. `launch_decode` runs for each layer with that schedule. Neither allocates,
/// synchronises, or reads lengths on the host, so a captured graph stays right while sequences
/// grow, join and leave.
///
/// A tile is 16 tokens of one KV head. A unit is what a warp loads at once: one tile, or two tiles
/// of fp8. The schedule cuts a row's units into parts of about equal bytes. A thread block, or a
/// cluster of them, takes one part of one KV head at a time. The parts of one (row, head) are
/// combined in a fixed order in the same launch, so the same inputs give the same bits.
///
/// A row has 1 .. limits.q_len query tokens, each row its own number. Rows with none or more, rows
/// without a table, and rows of shared tokens are skipped; their outputs are not written. Rows that
/// do not fit the workspace, because more than limits.max_rows are taken, are left out whole.
///
/// With fixed parts, the bits of a row do not depend on the other rows of the batch, on its place,
/// or on limits.max_rows, as long as the rows have no more tokens together than
/// limits.fixed_tokens. A part has 256 to 1,024 tokens, by head_dim, the KV heads and the length of
/// the row; a row has at most 32 or 64 parts.

#include "kernels/decode/decode_limits.h"
#include "kernels/params.h"
#include "kvarena/base/dtype.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/result.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace kvarena::kernels {

/// The input of a schedule. Device pointers.
struct DecodeScheduleParams {
  DecodeLimits limits;
  const std::int32_t* seq_lens = nullptr;  ///< [num_rows] tokens of each row, with the query tokens
  const std::int32_t* row_slots = nullptr;  ///< [num_rows] table row of each row, -1: skip the row,
                                            ///< its outputs are not written; null: row r has table
                                            ///< row r
  const std::int64_t* q_offsets = nullptr;  ///< [num_rows + 1] first query token of each row in q
                                            ///< and out, and one past the last row's; null: row r
                                            ///< has limits.q_len, from r * limits.q_len on
  const std::int32_t* shared_tokens = nullptr;  ///< [num_rows] rows with more than 0 are skipped;
                                                ///< null: none
  std::int32_t num_rows = 0;       ///< of the batch, with skipped ones. At most limits.max_rows are
                                   ///< taken
  std::int32_t window_tokens = 0;  ///< sliding window, 0: none
  bool fixed_parts = false;        ///< cut each row by its own length alone; needs
                                   ///< limits.fixed_tokens
  void* workspace = nullptr;       ///< 256-byte aligned; must be zeroed once before the first use
  std::int64_t workspace_bytes = 0;  ///< at least decode_workspace_bytes(limits)
};

/// Attention of one layer. Device pointers; shapes in C order.
struct DecodeParams {
  DecodeLimits limits;      ///< as scheduled
  const void* q = nullptr;  ///< [tokens, num_q_heads, head_dim] dtype; a row's tokens lie where
                            ///< the schedule's q_offsets say
  void* out = nullptr;      ///< [tokens, num_q_heads, head_dim] dtype
  float* lse = nullptr;     ///< [tokens, num_q_heads] log-sum-exp, natural logarithm; or null
  const float* sinks = nullptr;           ///< [num_q_heads] logits of the attention sinks; or null
  const void* key = nullptr;              ///< block 0 of the layer's K
  const void* value = nullptr;            ///< block 0 of the layer's V
  std::int64_t block_stride = 0;          ///< bytes from one block to the next
  std::int64_t head_stride = 0;           ///< bytes from one head's tiles to the next
  std::int32_t block_size = 16;           ///< tokens, a multiple of 16
  const BlockId* block_tables = nullptr;  ///< [.., table_stride] rows of block ids
  std::int64_t table_stride = 0;          ///< entries from one row to the next
  std::int32_t num_rows = 0;              ///< as scheduled
  std::int32_t max_q_len = 0;             ///< 1: every scheduled row has one query token, which is
                                          ///< faster; other numbers say nothing
  std::int32_t window_tokens = 0;         ///< as scheduled
  DType dtype = DType::bf16;              ///< of q and out: the same as limits.kv_dtype; bf16 or
                                          ///< f16 for fp8 K and V
  QuantScales scales = {};                ///< of fp8 K and V
  float scale = 1.0F;                     ///< of the logits
  float soft_cap = 0.0F;                  ///< of the logits, 0: none
  void* workspace = nullptr;              ///< as scheduled
  std::int64_t workspace_bytes = 0;       ///< as scheduled
  std::int64_t q_token_stride = 0;        ///< bytes, a multiple of 8; 0: dense
  std::int64_t out_token_stride = 0;      ///< bytes, a multiple of 8; 0: dense
};

static_assert(std::is_trivially_copyable_v<DecodeParams>);

/// Loads the kernels of both launches for K and V of this type and head_dim (load_kernel.h).
Status load_decode(DType kv_dtype, std::int32_t head_dim) noexcept;
/// Loads the kernel of the schedule.
Status load_decode_schedule() noexcept;

/// Queues the schedule of a step: one small thread block. Returns invalid_argument or unsupported
/// with the limit, or device_error when the launch fails.
Status launch_decode_schedule(const DecodeScheduleParams& params, cudaStream_t stream) noexcept;

/// Queues one layer. With `overlap` the launch is programmatic: it may begin while the kernel
/// before it on the stream is finishing. Before that kernel has completed, it reads the schedule,
/// the tables, and K and V of tokens older than the query tokens. The kernel before may therefore
/// be the append of the query tokens. It must not be the kernel that wrote the schedule or the
/// tables, and not a copy of blocks. A kernel in front that was itself launched programmatically
/// must wait for the one before it (griddepcontrol.wait) before it lets this one begin, as all
/// kernels of this library do; ordinary kernels always may stand in front. Returns
/// invalid_argument, limit_exceeded (workspace), unsupported (head_dim, dtype, block_size) or
/// device_error.
Status launch_decode(const DecodeParams& params, bool overlap, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
