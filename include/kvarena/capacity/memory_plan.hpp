#pragma once

/// @file
/// `plan`: what a model takes of a GPU's memory, what fits into the rest, and what limits it. The
/// pool's blocks come from plan_pool, which KvCache::create calls too: what is planned is what is
/// allocated. Pure functions, any thread. docs/reference/capacity.md has each formula with its
/// source.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/cache/cache_footprint.hpp"
#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/model_spec.hpp"
#include "kvarena/capacity/plan_options.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// One number with the arithmetic that made it.
struct PlanLine {
  std::string name;        ///< "key projection"
  std::string arithmetic;  ///< "24 layers x 896 x 128"
  std::int64_t value = 0;  ///< the result
  std::string unit;        ///< "parameters", "B", "blocks"
};

/// What limits a plan.
enum class PlanLimit : std::uint8_t {
  weights,        ///< weights, overhead and the activations of one sequence leave nothing
  kv_cache,       ///< memory for K and V
  activations,    ///< logits and tables of so many sequences, which take more than their K and V
  max_position,   ///< the model's longest context, or the longest that there is
  num_blocks,     ///< the most blocks a pool can have
  num_sequences,  ///< the most sequences of a plan
};
/// "weights", "kv_cache", "activations", "max_position", "num_blocks", "num_sequences".
KVARENA_EXPORT std::string_view name_of(PlanLimit limit) noexcept;

/// One group's pool.
struct GroupPlan {
  GroupMemory memory;                   ///< its arithmetic
  std::int64_t num_units = 0;           ///< blocks, or states
  std::int64_t units_per_sequence = 0;  ///< at most, up to the context
  std::int64_t pool_bytes = 0;          ///< num_units * unit_bytes
};

/// The answer, for the rank that has the least room; figures are of one GPU unless they say
/// otherwise.
struct MemoryPlan {
  std::int32_t stage = 0;                        ///< the pipeline stage that decides
  std::int64_t context_tokens = 0;               ///< planned for
  std::int64_t budget_bytes = 0;                 ///< what may be used
  bool weights_known = true;                     ///< false: what is left is left for weights too
  std::int64_t weights_bytes = 0;                ///< weights; 0 where they are not known
  bool weights_exact = true;                     ///< from headers, or counted and kept as published
  std::int64_t kv_cache_bytes = 0;               ///< all pools
  std::int64_t activation_bytes = 0;             ///< peak of a step
  std::int64_t table_bytes = 0;                  ///< block tables and workspaces of the cache
  std::int64_t overhead_bytes = 0;               ///< context, graphs, tables
  std::int64_t total_bytes = 0;                  ///< all of it
  std::int64_t free_bytes = 0;                   ///< of the memory; negative when it does not fit
  std::vector<GroupPlan> groups;                 ///< pools
  std::int64_t num_blocks = 0;                   ///< of all groups
  std::optional<std::int64_t> block_bytes;       ///< none: groups have blocks of different sizes
  std::int64_t kv_bytes_per_token = 0;           ///< while all groups grow; a sparse index left out
  std::int64_t index_bytes_per_token = 0;        ///< of a sparse-attention index
  std::int64_t kv_fixed_bytes_per_sequence = 0;  ///< states
  std::int64_t bytes_per_sequence = 0;           ///< at most, up to the context
  std::int64_t full_bytes_at_context = 0;        ///< of a sequence then, all tokens kept
  std::int64_t model_bytes_at_context = 0;       ///< those kept that the model's layers can read
  std::int64_t step_bytes = 0;      ///< of windows: blocks of a step's own tokens, see pool_units
  std::int64_t asked_kv_bytes = 0;  ///< batch * bytes_per_sequence + step_bytes
  std::int64_t asked_total_bytes = 0;                  ///< the total with that instead of the pools
  std::int64_t max_batch = 0;                          ///< sequences at the context, a replica
  std::int64_t max_context = 0;                        ///< tokens of each of `batch` sequences
  PlanLimit batch_limited_by = PlanLimit::kv_cache;    ///< of max_batch
  PlanLimit context_limited_by = PlanLimit::kv_cache;  ///< of max_context
  bool fits = false;                                   ///< `batch` sequences at the context;
                                                       ///< where weights are unknown: without them
  std::vector<PlanLine> lines;                         ///< the arithmetic, in order
};

/// Plans. A plan that does not fit is an answer, and so is one of a model of which neither
/// parameters nor weights are known: all but the weights. Fails only for what makes no sense:
/// invalid_argument naming the number, unsupported (num_q_heads) for ranks that are none of
/// tensor_parallel_choices, unsupported (dtype) as group_memory returns it.
KVARENA_EXPORT Result<MemoryPlan> plan(const ModelSpec& model, const PlanOptions& options);

/// Numbers of ranks that the model's query and KV heads can be split over, ascending.
KVARENA_EXPORT std::vector<std::int32_t> tensor_parallel_choices(const ModelSpec& model);

/// The options of the KvCache of the rank that a plan is of: as many blocks, max_sequences and
/// max_step_tokens of the options, sequences up to the context. Returns unsupported for what a
/// KvCache cannot hold yet, naming what is missing: (num_groups) several groups of layers, (window)
/// windows that are not kept whole, (num_planes) latents and states, (dtype) formats of blocks,
/// (scale) scales in the pool, (none) weights that are not known; insufficient_vram for a plan
/// without blocks.
KVARENA_EXPORT Result<KvCacheOptions> cache_options(const ModelSpec& model,
                                                    const PlanOptions& options,
                                                    const MemoryPlan& plan);

/// The field of PlanOptions that a change is of.
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

/// A change that would make it fit.
struct PlanChange {
  PlanField field = PlanField::context_tokens;  ///< what is other
  PlanOptions options;                          ///< with it
};
/// Single changes that would make a plan fit that does not, each the smallest of its kind: a
/// shorter context, a smaller batch, fewer tokens or sequences of a step, more utilization (up to
/// 0.98), the model's own retention, smaller types of K and V or weights (those of 8 bits, or 4
/// where none helps), more ranks that the heads can be split over, more stages. In that order;
/// empty when it fits or no single change helps.
KVARENA_EXPORT std::vector<PlanChange> changes_that_fit(const ModelSpec& model,
                                                        const PlanOptions& options);

}  // namespace kvarena::capacity
