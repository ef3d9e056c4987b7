#pragma once

/// @file
/// What a model's layers keep for a sequence, in bytes: by groups of layers, as blocks of tokens or
/// as states of fixed size. Pure functions, any thread; all arithmetic saturates at 2^63 - 1.

#include "kvarena/base/export.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/capacity/model_spec.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena::capacity {

/// Which tokens an engine keeps. `full`: all, in layers with a window too, as KvCache does.
/// `model`: those that the model's layers can still read.
enum class KeptTokens : std::uint8_t { full, model };

/// How a rank keeps K and V.
struct KvMemoryOptions {
  StorageFormat format;                 ///< of K and V and latents
  ScaleKind scale = ScaleKind::none;    ///< per_token_head: an f32 for each token and head
  KeptTokens kept = KeptTokens::full;   ///< which tokens
  std::int32_t block_size_tokens = 16;  ///< 1 .. 65536
  std::int32_t tensor_parallel = 1;     ///< ranks that share the KV heads
  std::int32_t pipeline_parallel = 1;   ///< stages that share the layers
  std::int32_t stage = 0;               ///< which of them
};

/// One group on one rank. Its unit is a block, or with a fixed size the state of a sequence.
struct GroupMemory {
  CacheKind kind = CacheKind::full;        ///< as it is kept: a window kept whole is `full`
  std::int32_t num_layers = 0;             ///< on this stage
  std::int32_t num_kv_heads = 0;           ///< on this rank
  std::int32_t head_dim_k = 0;             ///< elements of K a head
  std::int32_t head_dim_v = 0;             ///< elements of V a head
  std::int64_t bytes_per_token = 0;        ///< of K and V or latents, scales included
  std::int64_t index_bytes_per_token = 0;  ///< of a sparse-attention index, always in 8 bits
  std::int64_t limit_tokens = 0;           ///< tokens kept at most; 0: no limit
  std::int32_t block_size_tokens = 0;      ///< 0: a state of fixed size
  std::int64_t unit_bytes = 0;             ///< of a block (planes padded as in KvLayout) or a state
  std::string arithmetic = {};             ///< unit_bytes with its numbers in
};

/// The groups of a stage; those without layers there are left out. Layers go to stages as evenly as
/// they can, the first ones having one more, and groups are taken as evenly mixed. Returns what
/// validate returns, invalid_argument naming the option, or unsupported
/// (dtype), telling the dim, for heads that blocks of 256 elements (q4_K, q6_K) do not divide.
KVARENA_EXPORT Result<std::vector<GroupMemory>> group_memory(const ModelSpec& model,
                                                             const KvMemoryOptions& options);

/// Units that a sequence of `length_tokens` >= 0 holds: blocks with a token that is kept, or one
/// state.
KVARENA_EXPORT std::int64_t units_at(const GroupMemory& group, std::int64_t length_tokens) noexcept;
/// The most units that it holds between steps on its way to that length: up to one block more while
/// a window's first and last block are both begun.
KVARENA_EXPORT std::int64_t peak_units(const GroupMemory& group,
                                       std::int64_t length_tokens) noexcept;
/// The most units that so many sequences of up to that length hold while steps of `step_tokens` new
/// tokens in all run: peak_units each, and the blocks that a step's own tokens begin, which still
/// read what a window no longer keeps after the step; never more than all blocks of all sequences.
/// Never less for more sequences or longer ones.
KVARENA_EXPORT std::int64_t pool_units(const GroupMemory& group, std::int64_t sequences,
                                       std::int64_t length_tokens,
                                       std::int64_t step_tokens) noexcept;
/// Bytes of all groups for one sequence at that length.
KVARENA_EXPORT std::int64_t bytes_at(std::span<const GroupMemory> groups,
                                     std::int64_t length_tokens) noexcept;
/// The most bytes on its way there. Never less for a longer sequence.
KVARENA_EXPORT std::int64_t peak_bytes(std::span<const GroupMemory> groups,
                                       std::int64_t length_tokens) noexcept;
/// "0 + 12,288 B x tokens", "0 + 12,288 B x min(tokens, 2,047)", "3,145,728 B + 0 x tokens".
KVARENA_EXPORT std::string formula_of(const GroupMemory& group);

}  // namespace kvarena::capacity
