#include "capacity/planning.hpp"

#include "base/out_of_memory.hpp"
#include "capacity/amount.hpp"
#include "capacity/share.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

namespace kvarena::capacity {
namespace {

bool is_quantised(const StorageFormat& format) noexcept {
  return format.name == "int8" || format.name.starts_with("fp8");
}

/// The page of a pool for these groups: for the longest sequences of the model, so that plans for
/// any context have the same.
Result<PageChoice> pages_for(const ModelSpec& model, std::span<const GroupMemory> groups) {
  std::vector<PagedGroup> paged;
  for (const GroupMemory& group : groups) paged.push_back(group.paged);
  return choose_pages(paged, longest_context(model));
}

}  // namespace

KvMemoryOptions kv_options(const ModelSpec& model, const PlanOptions& o, std::int32_t stage) {
  const StorageFormat* own = find_storage_format(model.kv_format);
  KvMemoryOptions kv{.format = o.kv             ? *o.kv
                               : own != nullptr ? *own
                                                : *find_storage_format("bf16"),
                     .kept = o.kept,
                     .block_size_tokens = o.block_size_tokens,
                     .tensor_parallel = o.tensor_parallel,
                     .pipeline_parallel = o.pipeline_parallel,
                     .stage = stage};
  if (is_quantised(kv.format)) kv.scale = o.kv_scale;
  return kv;
}

std::int64_t StageMemory::num_pages(std::int64_t sequences,
                                    std::int64_t length_tokens) const noexcept {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    sum = plus(sum, pool_pages(groups[i], pages->groups[i], sequences, length_tokens, step_tokens));
  }
  return sum;
}

// A block manager numbers the blocks that all groups could have in a page; a table numbers places
// at a group's stride.
std::int64_t StageMemory::most_pages() const noexcept {
  std::int64_t numbers = 0;
  std::int64_t places = 1;
  for (const PagedBlocks& blocks : std::span(pages->groups).first(pages->num_groups)) {
    numbers += blocks.blocks_per_page;
    places = std::max(places, blocks.ids_per_page(pages->page_bytes));
  }
  return KvLayout::kMaxBlocks / std::max(numbers, places);
}

std::int64_t StageMemory::pool_bytes(std::int64_t sequences,
                                     std::int64_t length_tokens) const noexcept {
  if (pages) return times(num_pages(sequences, length_tokens), pages->page_bytes);
  std::int64_t sum = 0;
  for (const GroupMemory& group : groups) {
    const std::int64_t units = pool_units(group, sequences, length_tokens, step_tokens);
    sum = plus(sum, times(units, group.unit_bytes));
  }
  return sum;
}

std::int64_t StageMemory::sequence_bytes(std::int64_t length_tokens) const noexcept {
  if (!pages) return peak_bytes(groups, length_tokens);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    sum = plus(sum, pages_of(groups[i].paged, pages->groups[i], length_tokens));
  }
  return times(sum, pages->page_bytes);
}

bool StageMemory::has_ids(std::int64_t most_blocks, std::int64_t sequences,
                          std::int64_t length_tokens) const noexcept {
  if (pages) return num_pages(sequences, length_tokens) <= std::min(most_pages(), most_blocks);
  return std::ranges::all_of(groups, [&](const GroupMemory& group) {
    return group.block_size_tokens == 0 ||
           pool_units(group, sequences, length_tokens, step_tokens) <= most_blocks;
  });
}

bool StageMemory::holds_beside(const FittedCache& its, std::int64_t sequences,
                               std::int64_t length_tokens) const noexcept {
  if (cache_budget_bytes <= its.table_bytes || its.num_blocks == 0) return sequences == 0;
  return pool_bytes(sequences, length_tokens) <= cache_budget_bytes - its.table_bytes &&
         has_ids(its.num_blocks, sequences, length_tokens);
}

std::int64_t StageMemory::sequences(std::int64_t length_tokens) const noexcept {
  return longest_that([&](std::int64_t count) { return holds(count, length_tokens); }, 0,
                      kMostBatch + 1);
}

PlanLimit StageMemory::limit_of(const FittedCache& its, std::int64_t sequences,
                                std::int64_t length_tokens) const noexcept {
  if (cache_budget_bytes <= its.table_bytes) return PlanLimit::weights;
  const bool is_past_blocks = !has_ids(its.most_blocks, sequences, length_tokens);
  const std::int64_t left = cache_budget_bytes - its.table_bytes;
  return is_past_blocks && pool_bytes(sequences, length_tokens) <= left ? PlanLimit::num_blocks
                                                                        : PlanLimit::kv_cache;
}

std::int64_t overhead_of(const PlanOptions& o) noexcept {
  return plus(o.context_overhead_bytes, o.graph_bytes);
}

Result<StageMemory> memory_of_stage(const ModelSpec& model, const PlanOptions& o,
                                    std::int64_t context, std::int32_t stage) {
  Result<std::vector<GroupMemory>> groups = group_memory(model, kv_options(model, o, stage));
  if (!groups) return groups.status();
  StageMemory memory;
  memory.step_tokens = o.max_step_tokens;
  memory.groups = *std::move(groups);
  if (memory.groups.size() > 1) {
    const Result<PageChoice> choice = pages_for(model, memory.groups);
    if (!choice) return choice.status();
    memory.pages = *choice;
  }
  memory.weights_bytes = weights_of_rank(model, o, stage).bytes;
  memory.activation_bytes = activations_of_rank(model, o).bytes;
  const std::int64_t fixed =
      plus(plus(memory.weights_bytes, memory.activation_bytes), overhead_of(o));
  memory.cache_budget_bytes = fixed == kMostAmount ? -1 : budget_of(o).value() - fixed;
  memory.cache =
      fit_planned_cache(model, o, memory.groups, stage, context, memory.cache_budget_bytes);
  return memory;
}

bool has_less_room(const StageMemory& a, const StageMemory& b, std::int64_t context) noexcept {
  const std::int64_t x = a.sequences(context);
  const std::int64_t y = b.sequences(context);
  return x != y ? x < y : a.kv_budget_bytes() < b.kv_budget_bytes();
}

// Tables grow with the length too: between what fits beside the longest tables and what fits beside
// the shortest, each length is tried.
LongestContext longest_that_fits(const ModelSpec& model, const PlanOptions& o, std::int32_t stage,
                                 const StageMemory& memory, std::int64_t longest) {
  const auto cache_of = [&](std::int64_t length) {
    return fit_planned_cache(model, o, memory.groups, stage, length, memory.cache_budget_bytes);
  };
  const auto beside = [&](const FittedCache& cache, std::int64_t most) {
    return longest_that(
        [&](std::int64_t length) { return memory.holds_beside(cache, o.batch, length); }, 0,
        most + 1);
  };
  LongestContext found{.tokens = beside(cache_of(1), longest)};
  if (found.tokens > 0) {
    const std::int64_t least = beside(cache_of(found.tokens), found.tokens);
    found.tokens = longest_that(
        [&](std::int64_t length) { return memory.holds_beside(cache_of(length), o.batch, length); },
        least, found.tokens + 1);
  }
  found.kv_budget_bytes =
      memory.cache_budget_bytes - cache_of(std::max<std::int64_t>(found.tokens, 1)).table_bytes;
  found.pool_bytes = memory.pool_bytes(o.batch, found.tokens);
  if (found.tokens == longest) return found;
  const std::int64_t next = found.tokens + 1;
  found.limited_by = memory.limit_of(cache_of(next), o.batch, next);
  if (found.limited_by == PlanLimit::weights && o.batch > o.max_sequences) {
    PlanOptions one = o;
    one.batch = 1;
    const Result<StageMemory> alone = memory_of_stage(model, one, next, stage);
    if (alone && alone->kv_budget_bytes() > 0) found.limited_by = PlanLimit::activations;
  }
  return found;
}

std::set<std::int32_t> stages_to_plan(const ModelSpec& model, const PlanOptions& options) {
  const std::int32_t last = options.pipeline_parallel - 1;
  std::set<std::int32_t> stages = {0, last};
  if (last < 2) return stages;
  const auto shares = layers_by_stage(model.groups, options.pipeline_parallel);
  std::set<std::vector<std::int64_t>> seen;
  for (std::int32_t stage = 1; stage < last; ++stage) {
    const auto& layers = shares[static_cast<std::size_t>(stage)];
    std::vector<std::int64_t> counts(layers.begin(), layers.end());
    for (const ParameterPart& part : model.parts) {
      counts.push_back(
          parts_of_stage(part, model.shape.num_layers, options.pipeline_parallel, stage));
    }
    if (seen.insert(std::move(counts)).second) stages.insert(stage);
  }
  return stages;
}

namespace {

/// `sequences` of a length that fit on a stage.
LargestBatch batch_of(const StageMemory& memory, std::int64_t sequences,
                      std::int64_t length_tokens) {
  return {.sequences = sequences,
          .limited_by = memory.limit_of(memory.cache, sequences + 1, length_tokens),
          .kv_budget_bytes = memory.kv_budget_bytes(),
          .pool_bytes = memory.pool_bytes(sequences, length_tokens),
          .bytes_each = memory.sequence_bytes(length_tokens)};
}

/// The most sequences that fit where those of one step more do not, beside their own logits and
/// tables: on the stage that they do not fit on.
LargestBatch batch_beside_its_own(const ModelSpec& model, const PlanOptions& options,
                                  std::int64_t sequences, std::int64_t length_tokens) {
  const auto with = [&](std::int64_t batch, std::int32_t stage) {
    PlanOptions changed = options;
    changed.batch = batch;
    return memory_of_stage(model, changed, length_tokens, stage);
  };
  for (const std::int32_t stage : stages_to_plan(model, options)) {
    const Result<StageMemory> more = with(sequences + 1, stage);
    if (!more || more->holds(sequences + 1, length_tokens)) continue;
    const Result<StageMemory> one = with(1, stage);
    const Result<StageMemory> own = with(sequences, stage);
    if (!one || !own) break;
    LargestBatch batch = batch_of(*own, sequences, length_tokens);
    const std::int64_t grown = one->kv_budget_bytes() - more->kv_budget_bytes();
    batch.limited_by = grown > more->pool_bytes(sequences + 1, length_tokens)
                           ? PlanLimit::activations
                           : PlanLimit::kv_cache;
    return batch;
  }
  return {.sequences = sequences};
}

}  // namespace

LargestBatch batch_that_fits(const ModelSpec& model, const PlanOptions& options,
                             std::int64_t length_tokens) {
  PlanOptions changed = options;
  changed.batch = 1;
  LargestBatch most{.sequences = kMostBatch};
  std::optional<StageMemory> tightest;
  for (const std::int32_t stage : stages_to_plan(model, options)) {
    Result<StageMemory> memory = memory_of_stage(model, changed, length_tokens, stage);
    if (!memory) return {};
    if (tightest && !has_less_room(*memory, *tightest, length_tokens)) continue;
    tightest = *std::move(memory);
    const std::int64_t sequences = tightest->sequences(length_tokens);
    if (sequences < kMostBatch) most = batch_of(*tightest, sequences, length_tokens);
  }
  most.beside_one = most.sequences;
  if (most.sequences <= options.max_sequences) return most;
  const auto is_held = [&](std::int64_t batch) {
    changed.batch = batch;
    return fits(model, changed, length_tokens);
  };
  const std::int64_t held = longest_that(is_held, options.max_sequences, most.sequences + 1);
  if (held == most.sequences) return most;
  LargestBatch beside_its_own = batch_beside_its_own(model, options, held, length_tokens);
  beside_its_own.beside_one = most.sequences;
  return beside_its_own;
}

bool fits(const ModelSpec& model, const PlanOptions& options, std::int64_t context_tokens) {
  if (model.shape.max_position > 0 && context_tokens > model.shape.max_position) return false;
  const std::set<std::int32_t> stages = stages_to_plan(model, options);
  return std::ranges::all_of(stages, [&](std::int32_t stage) {
    const Result<StageMemory> memory = memory_of_stage(model, options, context_tokens, stage);
    return memory && memory->holds(options.batch, context_tokens);
  });
}

}  // namespace kvarena::capacity
