#pragma once

/// @file
/// Arguments and results of the calls of a `KvCache` step. Plain values. The memory that they point
/// to belongs to the caller, or to the cache until the step ends.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/blocktable/table_groups.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// Options of a step or a recording.
struct StepOptions {
  StreamId stream{};  ///< all of its work is queued on this stream of the cache's device; none: the
                      ///< last step's, at first the home stream (KvCacheOptions::home_stream)
};

/// The slots of a group of states for kernels: the lists of StateSlots in memory of the device, in
/// the order of the step's stream. On CUDA the addresses are the same in every step and in a
/// recording. Rows behind those of the step that runs have -1 in `read` and `write`, and no extras:
/// so does every row when a launch skips its step.
struct DeviceStateSlots {
  std::int32_t group = 0;                       ///< of the tables
  std::int32_t num_parts = 1;                   ///< blocks of a state
  std::int64_t max_extras = 0;                  ///< that any step has
  const std::int32_t* read = nullptr;           ///< [num_rows, num_parts]
  const std::int32_t* write = nullptr;          ///< [num_rows, num_parts]
  const std::int32_t* extra_offsets = nullptr;  ///< [num_rows + 1]
  const std::int32_t* extra_tokens = nullptr;   ///< [extra_offsets[num_rows]]
  const std::int32_t* extra_slots = nullptr;    ///< [extra_offsets[num_rows], num_parts]
};

/// The result of append: the batch, in the order of the demands. Valid until end_step.
struct StepBatch {
  std::span<const std::int64_t> slots;  ///< [num_tokens] the slot of each new token's K and V; with
                                        ///< groups [parts, num_tokens], by part of GroupLayout
  /// The slots in device memory, in the order of the step's stream. On the host device: as `slots`.
  /// On CUDA with groups: those of part 0; device_batch has those of each part.
  const std::int64_t* device_slots = nullptr;
  std::int64_t num_tokens = 0;  ///< new tokens: rows of `key`, `value`, `q`, `out`
  std::int64_t num_copies = 0;  ///< copies on write that were queued
  std::int64_t new_blocks = 0;  ///< blocks taken
  /// With groups of states: the slots of each (GroupLayout::states), in host memory. None in a
  /// recording. The copies and clearing that in_place kernels need are queued. On the host device
  /// the memory stays valid until the step's work has completed.
  std::span<const StateSlots> states{};
  /// The same in device memory, for kernels on the step's stream. On the host device: as `states`.
  std::span<const DeviceStateSlots> device_states{};
};

/// What a step put on the device, for attention kernels of the engine's own, with the views of the
/// planes (KvCache::layer_view). Device memory, written in the order of the stream of the cache; on
/// the host device, host memory. Rows are in the order of the demands. The table of row r begins at
/// `block_tables + row_offsets[r]`, which is row_slots[r] * table_stride; tables of different
/// lengths lie anywhere in the array. A kernel that wants rows at equal distances gathers them by
/// row_slots (with torch: `as_strided(table, (n, longest), (table_stride, 1))[row_slots]`), or
/// takes BlockTables::copy_rows. The pointers are the same in every step on CUDA, also for a
/// recording, where rows behind those of the step that runs are skipped ones: row_slots -1, length
/// 0, no query token, slots -1. With groups on CUDA, a chunk group has a row for each chunk with
/// new tokens of a demand, or for the last chunk; its table begins with the chunk, and its length
/// counts from there. A cross group has a row for each new token, or one when there is none. Valid
/// until end_step or end_recording.
struct DeviceBatch {
  const BlockId* block_tables = nullptr;  ///< block ids, int32; entries behind the blocks of a row,
                                          ///< and in front of its kept ones, have no meaning
  std::int64_t num_table_entries = 0;     ///< of block_tables
  std::int64_t table_stride = 0;          ///< entries
  const std::int32_t* row_slots = nullptr;    ///< [num_rows] in units of table_stride; -1: skip, or
                                              ///< on the host past 2^31 - 1
  const std::int64_t* row_offsets = nullptr;  ///< [num_rows] entries
  const std::int32_t* lengths = nullptr;      ///< [num_rows] tokens, with the new ones
  const std::int32_t* num_blocks = nullptr;   ///< [num_rows] blocks that hold them
  const std::int64_t* q_offsets = nullptr;    ///< [num_rows + 1] first new token of each row
  const std::int64_t* slots = nullptr;        ///< [num_tokens] as StepBatch::device_slots
  std::int32_t num_rows = 0;                  ///< in a recording: of the largest step
  std::int64_t num_tokens = 0;                ///< new ones; in a recording: of the largest step
  std::int32_t max_length_tokens = 0;  ///< the longest row, or in a recording the longest that any
                                       ///< step may have
  std::int32_t max_new_tokens = 0;     ///< of a row
};

/// The shape of a recorded decode step.
struct RecordedStep {
  std::int32_t num_rows = 0;        ///< sequences at most, 1 .. max_batch_rows
  std::int32_t tokens_per_row = 1;  ///< new tokens of each, 1 .. max_decode_tokens
  bool shares_prefixes = false;     ///< CUDA: sequences that begin with the same blocks read these
                                    ///< together; each replay then looks for them. Steps run call
                                    ///< by call look when there are such sequences. Not read in a
                                    ///< cache with groups, whose rows are read one by one
  std::int32_t row_tokens = 0;  ///< CUDA: tokens that the sequences will have, about; 0: unknown.
                                ///< Attention is right whatever they have, and fastest for so
                                ///< many: steps of many short sequences take down to half of the
                                ///< time. Record other graphs for other lengths
};

/// K and V of the step's new tokens for one layer.
struct WriteKvArgs {
  std::int32_t layer = 0;       ///< 0-based
  const void* key = nullptr;    ///< [num_tokens, num_kv_heads, head_dim_k]
  const void* value = nullptr;  ///< [num_tokens, num_kv_heads, head_dim_v]; null for latents, whose
                                ///< V is in K
  DType dtype = DType::f16;     ///< of key and value; converted to the layout's
  QuantScales scales = {};      ///< CUDA: of fp8 K and V, device memory; the same as for attend
  std::int64_t key_token_stride_bytes = 0;  ///< from one token of key to the next; 0: dense. Else a
                                            ///< multiple of the element, at least a dense token
  std::int64_t value_token_stride_bytes =
      0;  ///< of value, for example a part of a fused projection
};

/// Keys of a sparse-attention index of the step's new tokens for one layer.
struct WriteIndexArgs {
  std::int32_t layer = 0;                   ///< 0-based
  const void* key = nullptr;                ///< [num_tokens, index_dim]
  DType dtype = DType::f16;                 ///< of key: f32, f16 or bf16
  std::int64_t key_token_stride_bytes = 0;  ///< as in WriteKvArgs
};

/// K and V of a sequence's encoder for one layer of a cross group.
struct WriteCrossArgs {
  std::int32_t layer = 0;                     ///< 0-based
  SequenceId sequence;                        ///< of the step
  const void* key = nullptr;                  ///< [cross_tokens, num_kv_heads, head_dim_k]
  const void* value = nullptr;                ///< [cross_tokens, num_kv_heads, head_dim_v]; null
                                              ///< for latents, whose V is in K
  DType dtype = DType::f16;                   ///< of key and value; converted to the layout's
  std::int64_t key_token_stride_bytes = 0;    ///< as in WriteKvArgs
  std::int64_t value_token_stride_bytes = 0;  ///< the same
  QuantScales scales = {};                    ///< as in WriteKvArgs
};

/// Attention of the step's new tokens over one layer.
struct AttendArgs {
  std::int32_t layer = 0;        ///< 0-based
  const void* q = nullptr;       ///< [num_tokens, num_q_heads, head_dim_k]
  DType q_dtype = DType::f16;    ///< of q
  void* out = nullptr;           ///< [num_tokens, num_q_heads, head_dim_v]
  DType out_dtype = DType::f16;  ///< of out
  float* lse = nullptr;          ///< [num_tokens, num_q_heads] log-sum-exp, or nullptr
  float scale = 0.0F;            ///< of the logits; 0: 1 / sqrt(head_dim_k)
  float soft_cap = 0.0F;         ///< of the logits; 0: none
  bool windowed = false;         ///< true: see only the last KvCacheOptions::window_tokens. With
                                 ///< groups false: the group says what its layers see
  QuantScales scales = {};       ///< CUDA: of fp8 K and V, device memory
  const float* sinks = nullptr;  ///< [num_q_heads] logits of the attention sinks; or nullptr
  const std::uint64_t* tree_mask = nullptr;  ///< [num_tokens] draft trees, as in AttentionArgs;
                                             ///< needs KvCacheOptions::draft_trees
  bool kv_is_written = false;  ///< true: the caller's own kernels wrote K and V of the step's
                               ///< tokens, without write_kv; of a cross group those of the
                               ///< encoders of the step's sequences
  std::int64_t q_token_stride_bytes = 0;    ///< from one token of q to the next, 0: dense; as in
                                            ///< AttentionArgs
  std::int64_t out_token_stride_bytes = 0;  ///< of out
};

}  // namespace kvarena
