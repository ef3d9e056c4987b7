#pragma once

/// @file
/// What a kernel is given: one plain struct each, validated before it gets here (room 5 does that).
/// The same structs serve the CPU reference and device code; a launcher adds the stream as its last
/// argument. All strides are bytes and 64-bit; shapes are in C order.

#include "kvarena/base/views.hpp"

#include <cstdint>
#include <type_traits>

namespace kvarena::kernels {

/// Writes K and V of new tokens of one layer by slot mapping.
struct AppendParams {
  KvLayerView kv;             ///< [num_blocks, num_kv_heads, block_size, head_dim] each
  const void* key;            ///< [num_tokens, num_kv_heads, head_dim_k]
  const void* value;          ///< [num_tokens, num_kv_heads, head_dim_v]; null: V aliases K
  const std::int64_t* slots;  ///< [num_tokens] block * block_size + offset; -1: skip
  std::int64_t num_tokens;    ///< tokens
  DType dtype;                ///< of key and value
};

/// Decode (one or a few query tokens a row) and prefill (causal, chunked) over paged K and V.
struct AttentionParams {
  KvLayerView kv;                 ///< [num_blocks, num_kv_heads, block_size, head_dim] each
  BatchView batch;                ///< tables and lengths of num_rows sequences
  const std::int64_t* q_offsets;  ///< [num_rows + 1] first query token; null: one a row
  const void* q;                  ///< [total_q, num_q_heads, head_dim_k]
  void* out;                      ///< [total_q, num_q_heads, head_dim_v]
  float* lse;                     ///< [total_q, num_q_heads] natural log-sum-exp, or null
  std::int32_t num_q_heads;       ///< group_size = num_q_heads / kv.key.num_heads
  std::int32_t window_tokens;     ///< 0: none
  float scale;                    ///< of the logits
  float soft_cap;                 ///< 0: none
  DType q_dtype;                  ///< of q
  DType out_dtype;                ///< of out
};

/// The same over one sequence whose K and V are contiguous: the reference's reference.
struct ContiguousAttentionParams {
  const void* key;             ///< [seq_len, num_kv_heads, head_dim_k]
  const void* value;           ///< [seq_len, num_kv_heads, head_dim_v]
  const void* q;               ///< [num_q_tokens, num_q_heads, head_dim_k]
  void* out;                   ///< [num_q_tokens, num_q_heads, head_dim_v]
  float* lse;                  ///< [num_q_tokens, num_q_heads] or null
  std::int64_t seq_len;        ///< tokens, the last num_q_tokens of which are new
  std::int64_t num_q_tokens;   ///< query tokens
  std::int32_t num_q_heads;    ///< a multiple of num_kv_heads
  std::int32_t num_kv_heads;   ///< KV heads
  std::int32_t head_dim_k;     ///< elements
  std::int32_t head_dim_v;     ///< elements
  std::int32_t window_tokens;  ///< 0: none
  float scale;                 ///< of the logits
  float soft_cap;              ///< 0: none
  DType kv_dtype;              ///< of key and value
  DType q_dtype;               ///< of q
  DType out_dtype;             ///< of out
};

/// Copies whole blocks within a pool.
struct CopyBlocksParams {
  std::byte* base;            ///< block 0 of a region
  std::int64_t block_stride;  ///< bytes from one block to the next
  std::int64_t bytes;         ///< bytes of a block in this region
  const BlockCopy* copies;    ///< [num_copies]
  std::int64_t num_copies;    ///< copies
};

static_assert(std::is_trivially_copyable_v<AppendParams> &&
              std::is_standard_layout_v<AppendParams>);
static_assert(std::is_trivially_copyable_v<AttentionParams>);
static_assert(std::is_trivially_copyable_v<ContiguousAttentionParams>);
static_assert(std::is_trivially_copyable_v<CopyBlocksParams>);

}  // namespace kvarena::kernels
