#pragma once

/// @file
/// What a kernel is given: one plain struct each, validated before it gets here (room 5 does that).
/// The same structs serve the CPU reference and device code; a launcher adds the stream as its last
/// argument. All strides are bytes and 64-bit; shapes are in C order.

#include "kernels/scatter_step/staged_step.h"

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
  QuantScales scales = {};    ///< of fp8 planes; CUDA only
};

/// Neighbouring tokens of a sequence: the first one's place.
struct TokenRun {
  std::int32_t row;    ///< of the block tables
  std::int32_t start;  ///< position of the first token
};

/// Writes K and V of new tokens of one layer given as runs of sequences. CUDA only.
struct AppendRunsParams {
  KvLayerView kv;                   ///< [num_blocks, num_kv_heads, block_size, head_dim] each
  BlockTableView tables;            ///< block ids by row
  const void* key;                  ///< [num_tokens, num_kv_heads, head_dim_k]
  const void* value;                ///< [num_tokens, num_kv_heads, head_dim_v]; null: V aliases K
  const TokenRun* runs;             ///< [num_runs]; row -1: skip
  const std::int64_t* run_offsets;  ///< [num_runs + 1] first token of each run, from 0
  std::int64_t num_runs;            ///< runs
  std::int64_t num_tokens;          ///< of key and value; those past the last run are not written
  DType dtype;                      ///< of key and value
  QuantScales scales = {};          ///< of fp8 planes
};

/// Reads tokens of one sequence of one layer into contiguous memory. CUDA only.
struct GatherParams {
  KvLayerView kv;            ///< [num_blocks, num_kv_heads, block_size, head_dim] each
  BlockTableView tables;     ///< block ids by row
  std::int32_t row;          ///< the sequence
  std::int32_t first_token;  ///< position of the first token
  std::int64_t num_tokens;   ///< tokens
  void* key;                 ///< [num_tokens, num_kv_heads, head_dim_k] or null
  void* value;               ///< [num_tokens, num_kv_heads, head_dim_v] or null
  DType dtype;               ///< of key and value
  QuantScales scales = {};   ///< of fp8 planes
};

/// Writes contiguous tokens into one sequence's blocks: the inverse of gather. CUDA only.
struct ScatterParams {
  KvLayerView kv;            ///< [num_blocks, num_kv_heads, block_size, head_dim] each
  BlockTableView tables;     ///< block ids by row
  std::int32_t row;          ///< the sequence
  std::int32_t first_token;  ///< position of the first token
  std::int64_t num_tokens;   ///< tokens
  const void* key;           ///< [num_tokens, num_kv_heads, head_dim_k] or null
  const void* value;         ///< [num_tokens, num_kv_heads, head_dim_v] or null
  DType dtype;               ///< of key and value
  QuantScales scales = {};   ///< of fp8 planes
};

/// Copies blocks of one layer into another pool of the same shape, whatever the tile order and
/// element type of each. CUDA only.
struct ConvertBlocksParams {
  KvLayerView from;         ///< [num_blocks, num_kv_heads, block_size, head_dim] each
  KvLayerView to;           ///< the same but for num_blocks, strides, order and dtype
  const BlockCopy* copies;  ///< [num_copies] source in `from`, target in `to`
  std::int64_t num_copies;  ///< copies
  QuantScales scales = {};  ///< of fp8 planes
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
  QuantScales scales = {};        ///< of fp8 planes
  const float* sinks = nullptr;  ///< [num_q_heads] logit of each head's sink, which weighs and adds
                                 ///< nothing; where no token is seen it is left out; or null
};

/// Prefill on CUDA: attention.q_offsets and every other array is device memory.
struct PrefillParams {
  AttentionParams attention;  ///< query tokens ragged by q_offsets, causal
  std::int64_t total_q = 0;   ///< query tokens of all rows, or an upper bound; the first one is
                              ///< q_offsets[0]: a batch may be the last rows of a larger one
};

/// The same over one sequence whose K and V are contiguous: the reference's reference.
struct ContiguousAttentionParams {
  const void* key;               ///< [seq_len, num_kv_heads, head_dim_k]
  const void* value;             ///< [seq_len, num_kv_heads, head_dim_v]
  const void* q;                 ///< [num_q_tokens, num_q_heads, head_dim_k]
  void* out;                     ///< [num_q_tokens, num_q_heads, head_dim_v]
  float* lse;                    ///< [num_q_tokens, num_q_heads] or null
  std::int64_t seq_len;          ///< tokens, the last num_q_tokens of which are new
  std::int64_t num_q_tokens;     ///< query tokens
  std::int32_t num_q_heads;      ///< a multiple of num_kv_heads
  std::int32_t num_kv_heads;     ///< KV heads
  std::int32_t head_dim_k;       ///< elements
  std::int32_t head_dim_v;       ///< elements
  std::int32_t window_tokens;    ///< 0: none
  float scale;                   ///< of the logits
  float soft_cap;                ///< 0: none
  DType kv_dtype;                ///< of key and value
  DType q_dtype;                 ///< of q
  DType out_dtype;               ///< of out
  const float* sinks = nullptr;  ///< [num_q_heads] as in AttentionParams
};

/// Copies whole blocks within a pool. Block-major: one plane that is the whole block. Layer-major:
/// planes of equal size at equal distances (K and V of different sizes: one call each).
struct CopyBlocksParams {
  std::byte* base;                ///< block 0 of the first plane
  std::int64_t block_stride;      ///< bytes from one block to the next
  std::int64_t bytes;             ///< bytes of a block in a plane
  const BlockCopy* copies;        ///< [num_copies]; a negative source: skip
  std::int64_t num_copies;        ///< copies
  std::int64_t num_blocks = 0;    ///< blocks in the pool
  std::int64_t num_planes = 1;    ///< planes
  std::int64_t plane_stride = 0;  ///< bytes from one plane to the next
};

/// A block as its next tokens are to find it: the first `kept_tokens` tokens of `source`, zeros
/// behind them. `source` may be `target`, which then keeps its own.
struct BlockScrub {
  BlockId source;            ///< stays as it is
  BlockId target;            ///< of no other entry of a list, neither source nor target
  std::int32_t kept_tokens;  ///< 0 .. block_size
};

/// Scrubs blocks in all layers of a pool whose layers are alike.
struct ScrubParams {
  KvLayerView kv;             ///< the first layer
  std::int64_t key_bytes;     ///< of a block in a plane of K, padding included; zeroed to there
  std::int64_t value_bytes;   ///< the same of V; 0: V aliases K
  std::int32_t num_layers;    ///< layers
  std::int64_t layer_stride;  ///< bytes from a plane to the next layer's
  const BlockScrub* scrubs;   ///< [num_scrubs] host memory, on CUDA too
  std::int64_t num_scrubs;    ///< entries
};

/// Brings one step from a staging ring to the arrays that its kernels read.
struct ScatterStepParams {
  StepShape shape;                ///< of the ring and the arrays
  const std::byte* ring;          ///< [steps_in_flight, slot_bytes] staging memory, 16-byte aligned
  const StepWord* expected_word;  ///< of the device: names the step to take; null: `expected` does
  StepWord expected;              ///< names it where `expected_word` is null; 0: none
  ScatterState* state;            ///< of the device
  ScatterReport* report;          ///< staging memory: parts of the state, for the host
  BlockId* block_tables;          ///< [table_entries]
  std::int32_t* row_slots;        ///< [max_rows] granule of each row's table; -1: skip
  std::int64_t* row_offsets;      ///< [max_rows] row_slots * kGranule; 0: skip
  std::int32_t* seq_lens;         ///< [max_rows] 0: skip
  std::int32_t* num_blocks;       ///< [max_rows] 0: skip
  std::int64_t* q_offsets;        ///< [max_rows + 1] first new token of each row
  std::int64_t* slots;            ///< [max_tokens] of new tokens; -1: none
  BlockCopy* copies;              ///< [max_rows] source -1: none
};

static_assert(std::is_trivially_copyable_v<AppendParams> &&
              std::is_standard_layout_v<AppendParams>);
static_assert(std::is_trivially_copyable_v<AttentionParams>);
static_assert(std::is_trivially_copyable_v<ContiguousAttentionParams>);
static_assert(std::is_trivially_copyable_v<CopyBlocksParams> &&
              std::is_trivially_copyable_v<ScrubParams> && sizeof(BlockScrub) == 12);
static_assert(std::is_trivially_copyable_v<AppendRunsParams> && sizeof(TokenRun) == 8);

}  // namespace kvarena::kernels
