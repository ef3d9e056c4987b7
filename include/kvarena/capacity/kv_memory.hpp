#pragma once

/// @file
/// Bytes that a model's layers keep for a sequence. Each group of layers keeps blocks of tokens or
/// a state of fixed size. Pure functions for any thread. All arithmetic saturates at 2^63 - 1.

#include "kvarena/base/choose_pages.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/capacity/model_spec.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena::capacity {

/// Which tokens an engine keeps. `full`: all tokens in all layers, also in layers with a window; a
/// KvCache without groups does this. `model`: the tokens that the model's layers can still read; a
/// KvCache with groups (KvCacheOptions::groups) does this.
enum class KeptTokens : std::uint8_t { full, model };

/// How a rank stores K and V.
struct KvMemoryOptions {
  StorageFormat format;                 ///< of K and V and latents
  ScaleKind scale = ScaleKind::none;    ///< per_token_head: one f32 for each token and head
  KeptTokens kept = KeptTokens::model;  ///< which tokens are kept
  std::int32_t block_size_tokens = 16;  ///< 1 .. 65536
  std::int32_t tensor_parallel = 1;     ///< ranks that share the KV heads
  std::int32_t pipeline_parallel = 1;   ///< stages that share the layers
  std::int32_t stage = 0;               ///< the stage to compute, from 0
};

/// One group on one rank. Its unit is a block, or for a group of fixed size the state of a
/// sequence.
struct GroupMemory {
  CacheKind kind =
      CacheKind::full;  ///< how the group is kept; a window whose tokens are all kept is `full`
  std::int32_t num_layers = 0;       ///< layers on this stage
  std::int32_t num_kv_heads = 0;     ///< KV heads on this rank
  std::int32_t head_dim_k = 0;       ///< elements of K a head
  std::int32_t head_dim_v = 0;       ///< elements of V a head
  std::int64_t bytes_per_token = 0;  ///< bytes of K and V or latents, with scales
  std::int64_t index_bytes_per_token =
      0;                          ///< bytes of a sparse-attention index, always 8 bits an element
  std::int64_t limit_tokens = 0;  ///< most tokens that are kept; 0: no limit
  std::int32_t block_size_tokens = 0;  ///< 0: the unit is a state of fixed size
  std::int64_t unit_bytes = 0;  ///< bytes of a block (planes padded as in KvLayout) or of a state
  std::string arithmetic = {};  ///< how unit_bytes is computed, with its numbers
  PagedGroup paged = {};        ///< the same layers as a group of a pool of pages
};

/// Returns the groups that have layers on the stage. Layers are spread evenly over the stages; the
/// first stages have one more. Groups are assumed to be evenly mixed over the layers. Returns what
/// validate returns, invalid_argument with the option, or unsupported (dtype) with the dim when a
/// head is not a multiple of the format's block (256 elements for q4_K and q6_K).
KVARENA_EXPORT Result<std::vector<GroupMemory>> group_memory(const ModelSpec& model,
                                                             const KvMemoryOptions& options);

/// Returns the units that a sequence of `length_tokens` >= 0 holds: the blocks with a kept token,
/// or its state and those of the `paged.rollback_tokens` tokens before it.
KVARENA_EXPORT std::int64_t units_at(const GroupMemory& group, std::int64_t length_tokens) noexcept;
/// Returns the most units that a sequence holds between two steps while it grows to that length. A
/// window can need one block more than at the end, while its first and its last block are both
/// partly used.
KVARENA_EXPORT std::int64_t peak_units(const GroupMemory& group,
                                       std::int64_t length_tokens) noexcept;
/// Returns the most units that `sequences` sequences of up to `length_tokens` hold while steps with
/// `step_tokens` new tokens in all run. The result is the sum of peak_units and of the blocks that
/// a step's own tokens begin: what leaves a window or a chunk leaves it after the step. The result
/// is at most the number of all blocks of all sequences. Of states it is what peak_units says for
/// each sequence, and one for each token of a step, but for a sequence no more than it keeps: the
/// step writes them and keeps those before it until it ends, whatever the mode of the kernel.
/// Checkpoints inside a step take no page that is needed.
/// The result never falls when sequences are more or longer.
KVARENA_EXPORT std::int64_t pool_units(const GroupMemory& group, std::int64_t sequences,
                                       std::int64_t length_tokens,
                                       std::int64_t step_tokens) noexcept;
/// Returns the most pages that `sequences` sequences of up to `length_tokens` hold in a pool of
/// pages while steps with `step_tokens` new tokens in all run: pages_of (choose_pages.hpp) for each
/// of them, and the pages that a step's own tokens turn; of states pages_of_states. A pool with the
/// sum over all groups refuses none of them. It never falls when sequences are more or longer.
KVARENA_EXPORT std::int64_t pool_pages(const GroupMemory& group, const PagedBlocks& blocks,
                                       std::int64_t sequences, std::int64_t length_tokens,
                                       std::int64_t step_tokens) noexcept;
/// Returns the bytes of all groups for one sequence of that length.
KVARENA_EXPORT std::int64_t bytes_at(std::span<const GroupMemory> groups,
                                     std::int64_t length_tokens) noexcept;
/// Returns the most bytes that a sequence holds while it grows to that length. The result never
/// falls when the sequence is longer.
KVARENA_EXPORT std::int64_t peak_bytes(std::span<const GroupMemory> groups,
                                       std::int64_t length_tokens) noexcept;
/// Returns the bytes of a sequence as a formula: "0 + 12,288 B x tokens", "0 + 12,288 B x
/// min(tokens, 2,047)", "3,145,728 B + 0 x tokens" or "3,145,728 B x (1 + min(tokens, 3))".
KVARENA_EXPORT std::string formula_of(const GroupMemory& group);

}  // namespace kvarena::capacity
