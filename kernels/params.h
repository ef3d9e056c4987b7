#pragma once

/// @file
/// The parameters of the kernels: one plain struct for each kernel. Callers validate a struct
/// before they pass it (src/attention does). The CPU reference and the device code use the same
/// structs; a launcher takes the stream as its last argument. All strides are 64-bit and in bytes.
/// Shapes are in C order.

#include "kernels/scatter_step/staged_step.h"

#include "kvarena/base/views.hpp"

#include <cstdint>
#include <type_traits>

namespace kvarena::kernels {

/// Returns the bytes from one token to the next of [num_tokens, num_heads, head_dim] memory:
/// `given`, or those of dense memory for 0.
constexpr std::int64_t token_stride(std::int64_t given, std::int64_t num_heads,
                                    std::int64_t head_dim, DType dtype) noexcept {
  return given != 0 ? given : num_heads * head_dim * bytes_of(dtype);
}

/// Writes K and V of new tokens of one layer by slot mapping.
struct AppendParams {
  KvLayerView kv;                     ///< [num_blocks, num_kv_heads, block_size, head_dim] each
  const void* key;                    ///< [num_tokens, num_kv_heads, head_dim_k]
  const void* value;                  ///< [num_tokens, num_kv_heads, head_dim_v]; null: V aliases K
  const std::int64_t* slots;          ///< [num_tokens] block * block_size + offset; -1: skip
  std::int64_t num_tokens;            ///< tokens
  DType dtype;                        ///< of key and value
  QuantScales scales = {};            ///< of fp8 planes; CUDA only
  std::int64_t key_token_stride = 0;  ///< of key; 0: dense
  std::int64_t value_token_stride = 0;  ///< of value; 0: dense
};

/// The place of the first of some neighbouring tokens of a sequence.
struct TokenRun {
  std::int32_t row;    ///< row of the block tables
  std::int32_t start;  ///< position of the first token
};

/// Writes K and V of new tokens of one layer. The tokens are runs of sequences. CUDA only.
struct AppendRunsParams {
  KvLayerView kv;                   ///< [num_blocks, num_kv_heads, block_size, head_dim] each
  BlockTableView tables;            ///< block ids by row
  const void* key;                  ///< [num_tokens, num_kv_heads, head_dim_k]
  const void* value;                ///< [num_tokens, num_kv_heads, head_dim_v]; null: V aliases K
  const TokenRun* runs;             ///< [num_runs]; row -1: skip
  const std::int64_t* run_offsets;  ///< [num_runs + 1] first token of each run, from 0
  std::int64_t num_runs;            ///< runs
  std::int64_t num_tokens;          ///< of key and value; tokens after the last run are not written
  DType dtype;                      ///< of key and value
  QuantScales scales = {};          ///< of fp8 planes
};

/// Reads tokens of one sequence, in one layer, into contiguous memory. CUDA only.
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

/// Writes contiguous tokens into the blocks of one sequence: the inverse of gather. CUDA only.
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

/// Copies blocks of one layer into another pool of the same shape. The pools may differ in tile
/// order and element type. CUDA only.
struct ConvertBlocksParams {
  KvLayerView from;         ///< [num_blocks, num_kv_heads, block_size, head_dim] each
  KvLayerView to;           ///< equal except for num_blocks, strides, order and dtype
  const BlockCopy* copies;  ///< [num_copies] source in `from`, target in `to`
  std::int64_t num_copies;  ///< copies
  QuantScales scales = {};  ///< of fp8 planes
};

/// Decode (a few query tokens a row) and prefill (causal, chunked) over paged K and V.
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
  const float* sinks = nullptr;   ///< [num_q_heads] logit of the sink of each head; a sink adds to
                                  ///< the sum of weights but not to the output; a row that sees no
                                  ///< token has no sink; or null
  const std::uint64_t* tree_mask = nullptr;  ///< [total_q] draft trees, at most 64 query tokens a
                                             ///< row: bit j of query token i says whether it sees
                                             ///< query token j of its row. It sees itself and all
                                             ///< older tokens; with a window, the last
                                             ///< window_tokens of these. Null: causal
  std::int64_t q_token_stride = 0;           ///< of q; 0: dense, where a kernel gets it never 0
  std::int64_t out_token_stride = 0;         ///< of out; the same

  std::int64_t q_stride() const noexcept {
    return token_stride(q_token_stride, num_q_heads, kv.key.head_dim, q_dtype);
  }
  std::int64_t out_stride() const noexcept {
    return token_stride(out_token_stride, num_q_heads, kv.value.head_dim, out_dtype);
  }
};

struct PrefillCounters;  // prefill_plan.h
struct PrefillPlan;

/// Prefill on CUDA. attention.q_offsets and every other array is device memory.
struct PrefillParams {
  AttentionParams attention;   ///< query tokens ragged by q_offsets, causal
  std::int64_t total_q = 0;    ///< query tokens of all rows, or an upper bound. The first one is
                               ///< q_offsets[0], so a batch may be the last rows of a larger one
  std::int32_t min_q_len = 1;  ///< rows with fewer query tokens are skipped
  const std::int32_t* row_slots = nullptr;  ///< [num_rows] -1: skip the row; or null
  std::int32_t num_prompts = 0;  ///< rows that are not skipped, for the choice of tiles; 0: all
  bool has_fixed_tiles = false;  ///< the same tiles for every batch, so that bits are the same
  std::int32_t num_sms = 0;      ///< multiprocessors of the device
  std::int32_t compute_capability = 0;  ///< of the device: 90 for 9.0; 0: use the kernels for all
  PrefillCounters* counters = nullptr;  ///< of the Hopper kernel, zeroed; null: it is not used
  PrefillPlan* plan = nullptr;          ///< of these rows; null: it is not used for more than
                                        ///< kRowsWithoutPlan rows
};

/// Attention over one sequence with contiguous K and V. It checks the paged reference.
struct ContiguousAttentionParams {
  const void* key;               ///< [seq_len, num_kv_heads, head_dim_k]
  const void* value;             ///< [seq_len, num_kv_heads, head_dim_v]
  const void* q;                 ///< [num_q_tokens, num_q_heads, head_dim_k]
  void* out;                     ///< [num_q_tokens, num_q_heads, head_dim_v]
  float* lse;                    ///< [num_q_tokens, num_q_heads] or null
  std::int64_t seq_len;          ///< tokens; the last num_q_tokens of them are new
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

/// Copies whole blocks within a pool. A block-major pool has one plane, which is the whole block. A
/// layer-major pool has planes of equal size at equal distances. When K and V differ in size, each
/// needs a call.
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

/// A block as its next tokens must find it: the first `kept_tokens` tokens of `source`, then zeros.
/// When `source` is `target`, the block keeps its own tokens.
struct BlockScrub {
  BlockId source;            ///< unchanged, unless it is `target`
  BlockId target;            ///< in no other entry of the list, as source or target
  std::int32_t kept_tokens;  ///< 0 .. block_size
};

/// Scrubs blocks in all layers of a pool. All layers have the same shape.
struct ScrubParams {
  KvLayerView kv;             ///< the first layer
  std::int64_t key_bytes;     ///< of a block in a plane of K, with padding; all of them are zeroed
  std::int64_t value_bytes;   ///< of a block in a plane of V; 0: V aliases K
  std::int32_t num_layers;    ///< layers
  std::int64_t layer_stride;  ///< bytes from a plane to the same plane of the next layer
  const BlockScrub* scrubs;   ///< [num_scrubs] in host memory, on CUDA too
  std::int64_t num_scrubs;    ///< entries
};

/// Copies one step from a staging ring to the arrays that its kernels read.
struct ScatterStepParams {
  StepShape shape;                ///< of the ring and the arrays
  const std::byte* ring;          ///< [steps_in_flight, slot_bytes] staging memory, 16-byte aligned
  const StepWord* expected_word;  ///< on the device: names the step to take; null: `expected` names
                                  ///< it
  StepWord expected;              ///< used when `expected_word` is null; 0: no step
  ScatterState* state;            ///< on the device
  ScatterReport* report;          ///< staging memory: the part of the state that the host reads
  BlockId* block_tables;          ///< [table_entries]
  std::int32_t* row_slots;        ///< [max_rows] granule of each row's table; -1: skip
  std::int64_t* row_offsets;      ///< [max_rows] row_slots * kGranule; 0: skip
  std::int32_t* seq_lens;         ///< [max_rows] 0: skip
  std::int32_t* num_blocks;       ///< [max_rows] 0: skip
  std::int64_t* q_offsets;        ///< [max_rows + 1] first new token of each row
  std::int64_t* slots;            ///< [max_tokens] slots of the new tokens; -1: none
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
