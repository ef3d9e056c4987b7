#pragma once

/// @file
/// `plan`: computes how much of a GPU's memory a model takes, how many sequences fit into the rest,
/// and what limits their number. plan_pool computes the pool's blocks, and KvCache::create calls it
/// too, so the plan and the allocation are equal. Pure functions for any thread.
/// docs/explanation/capacity.md has each formula with its source.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/cache/cache_footprint.hpp"
#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/model_groups.hpp"
#include "kvarena/capacity/model_spec.hpp"
#include "kvarena/capacity/plan_options.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// One number and how it is computed.
struct PlanLine {
  std::string name;        ///< "key projection"
  std::string arithmetic;  ///< "24 layers x 896 x 128"
  std::int64_t value = 0;  ///< the result
  std::string unit;        ///< "parameters", "B", "blocks"
};

/// The limit of a plan.
enum class PlanLimit : std::uint8_t {
  weights,        ///< weights, overhead and the activations of one sequence leave no memory
  kv_cache,       ///< memory for K and V
  activations,    ///< logits and tables of the sequences, which take more than their K and V
  max_position,   ///< the longest context of the model, or of any model
  num_blocks,     ///< the most blocks a pool can have
  num_sequences,  ///< the most sequences of a plan
};
/// Returns "weights", "kv_cache", "activations", "max_position", "num_blocks" or "num_sequences".
KVARENA_EXPORT std::string_view name_of(PlanLimit limit) noexcept;

/// One group's part of the pool. A single group has the whole pool. Several groups share a pool of
/// equal pages (base/choose_pages.hpp): any group can take any page, and the figures are for as
/// many sequences as fit.
struct GroupPlan {
  GroupMemory memory;                   ///< the bytes of its units
  std::int64_t num_units = 0;           ///< blocks, or states
  std::int64_t units_per_sequence = 0;  ///< at most, up to the context
  std::int64_t pool_bytes = 0;          ///< num_units * unit_bytes, or the bytes of num_pages
  std::int32_t num_parts = 1;        ///< pages: equal parts of whole layers that a unit is cut into
  std::int32_t blocks_per_page = 0;  ///< pages: parts that a page has room for
  std::int64_t part_bytes = 0;       ///< pages: bytes of a part, rounded up to 1 KiB
  std::int64_t num_pages = 0;        ///< pages: the pages of all sequences
  std::int64_t pages_per_sequence = 0;  ///< pages: at most, up to the context
};

/// The result of a plan, for the rank that has the least room. Figures are for one GPU unless the
/// comment says otherwise.
struct MemoryPlan {
  std::int32_t stage = 0;           ///< the pipeline stage with the least room
  std::int64_t context_tokens = 0;  ///< the context of each sequence
  std::int64_t budget_bytes = 0;    ///< the memory that may be used
  bool weights_known = true;        ///< false: the memory that is left must also hold the weights
  std::int64_t weights_bytes = 0;   ///< bytes of the weights; 0 when they are not known
  bool weights_exact = true;        ///< true: from file headers, or counted and stored as published
  std::int64_t kv_cache_bytes = 0;  ///< bytes of all pools
  std::int64_t activation_bytes = 0;  ///< peak of a step
  std::int64_t table_bytes = 0;       ///< block tables and workspaces of the cache
  std::int64_t overhead_bytes = 0;    ///< CUDA context, graphs and table_bytes
  std::int64_t total_bytes = 0;       ///< weights, pools, activations and overhead
  std::int64_t free_bytes = 0;  ///< memory_bytes - total_bytes; negative when the plan does not fit
  std::int64_t page_bytes = 0;  ///< bytes of a page; 0: a single group, whose page is its block
  std::int64_t num_pages = 0;   ///< pages of the pool, of all groups
  std::vector<GroupPlan> groups;  ///< the groups of layers
  std::int64_t num_blocks = 0;    ///< blocks of all groups
  std::optional<std::int64_t>
      block_bytes;  ///< bytes of a block; absent when groups have different ones
  std::int64_t kv_bytes_per_token = 0;           ///< while all groups grow, without a sparse index
  std::int64_t index_bytes_per_token = 0;        ///< bytes of a sparse-attention index
  std::int64_t kv_fixed_bytes_per_sequence = 0;  ///< states
  std::int64_t bytes_per_sequence = 0;           ///< at most, up to the context
  std::int64_t full_bytes_at_context =
      0;  ///< of a sequence at the context when all tokens are kept
  std::int64_t model_bytes_at_context = 0;  ///< the same when only readable tokens are kept
  std::int64_t step_bytes = 0;         ///< blocks of a step's own tokens, and second states: see
                                       ///< pool_units
  std::int64_t asked_kv_bytes = 0;     ///< batch * bytes_per_sequence + step_bytes
  std::int64_t asked_total_bytes = 0;  ///< the total with asked_kv_bytes in place of the pools
  std::int64_t max_batch = 0;          ///< most sequences at the context in a replica
  std::int64_t max_context = 0;        ///< most tokens of each of `batch` sequences
  PlanLimit batch_limited_by = PlanLimit::kv_cache;    ///< what limits max_batch
  PlanLimit context_limited_by = PlanLimit::kv_cache;  ///< what limits max_context
  bool fits =
      false;  ///< whether `batch` sequences fit at the context; unknown weights are not counted
  std::vector<PlanLine> lines;  ///< the arithmetic line by line, in order
};

/// Makes a plan. A plan that does not fit is a valid result. When neither parameters nor weights of
/// the model are known, the plan has everything but the weights. Returns invalid_argument with the
/// number that is out of range, unsupported (num_q_heads) when the number of ranks is not one of
/// tensor_parallel_choices, or unsupported (dtype) as group_memory does.
KVARENA_EXPORT Result<MemoryPlan> plan(const ModelSpec& model, const PlanOptions& options);

/// Returns the numbers of ranks over which the model's query and KV heads can be split, ascending.
KVARENA_EXPORT std::vector<std::int32_t> tensor_parallel_choices(const ModelSpec& model);

/// The options of a cache, with the groups of layers that they borrow. Move-only.
struct PlannedCache {
  KvCacheOptions options;  ///< its `groups` are those of `groups`
  ModelGroups groups;      ///< none: all layers are alike, and all their tokens are kept
};
/// Returns the options of the KvCache of the planned rank: the plan's blocks or pages, the options'
/// max_sequences and max_step_tokens, and sequences up to the context. Its page is the plan's.
/// Returns unsupported with what a KvCache cannot hold, as groups_of does: (kind) recurrent layers
/// without any attention, (index_dim) a sparse-attention index, (dtype) block formats, (scale)
/// scales of a format of one byte, or of several groups; (none) for unknown weights; what
/// cache_footprint returns for the target of the options; or insufficient_vram for a plan without
/// blocks.
KVARENA_EXPORT Result<PlannedCache> cache_options(const ModelSpec& model,
                                                  const PlanOptions& options,
                                                  const MemoryPlan& plan);

/// The field of PlanOptions that a change changes.
enum class PlanField : std::uint8_t {
  context_tokens,
  batch,
  max_step_tokens,
  max_sequences,
  utilization_permille,
  kept,
  kv,
  weights,
  tensor_parallel,
  pipeline_parallel,
};

/// A change of the options that makes a plan fit.
struct PlanChange {
  PlanField field = PlanField::context_tokens;  ///< the changed field
  PlanOptions options;                          ///< all options, with the change
};
/// Returns the single changes that make a plan fit, each as small as possible, in this order: a
/// shorter context, a smaller batch, fewer tokens of a step, fewer sequences of a step, more
/// utilization (up to 0.98), KeptTokens::model, smaller types of K and V, smaller types of weights,
/// more ranks over which the heads can be split, more stages. Every type of 8 bits that helps is in
/// the list, and q4_0 when none of them does. Returns nothing when the plan fits or no single
/// change helps.
KVARENA_EXPORT std::vector<PlanChange> changes_that_fit(const ModelSpec& model,
                                                        const PlanOptions& options);

}  // namespace kvarena::capacity
