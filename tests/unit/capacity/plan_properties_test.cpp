// plan() and group_memory() under random models and options: monotone, additive, never wrapping.
// Seeds and lengths: KVARENA_SEED, KVARENA_TEST_ROUNDS; RC_PARAMS as rapidcheck prints it.

#include "kvarena/capacity/memory_plan.hpp"

#include "capacity/share.hpp"

#include "support/seeded_properties.hpp"
#include "unit/capacity/any_model.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <ostream>
#include <string>

namespace kvarena::capacity {
namespace {

using PlanProperties = test::SeededProperties<200>;

/// A test of the property that follows.
#define PLAN_PROPERTY(name)                                      \
  void name();                                                   \
  TEST_F(PlanProperties, name) { EXPECT_TRUE(rc::check(name)); } \
  void name()

MemoryPlan made(const ModelSpec& model, const PlanOptions& options) {
  Result<MemoryPlan> plan = capacity::plan(model, options);
  // Blocks of groups that differ too much fill no page, and chunks are whole blocks.
  if (!plan && plan.status().resource == Resource::block_bytes) RC_DISCARD("no page");
  if (!plan && plan.status().option == Option::limit_tokens) RC_DISCARD("no whole blocks");
  if (!plan) RC_FAIL(describe(plan.status()));
  return *std::move(plan);
}

/// Whether both plans have pools without pages. A pool of pages has excess that another page, of
/// other blocks, may not have.
bool have_no_pages(const MemoryPlan& a, const MemoryPlan& b) {
  return a.page_bytes == 0 && b.page_bytes == 0;
}

/// What a plan has no less of than another, as far as room goes.
void has_no_less_room(const MemoryPlan& more, const MemoryPlan& less) {
  RC_ASSERT(more.max_batch >= less.max_batch);
  RC_ASSERT(more.max_context >= less.max_context);
  RC_ASSERT(more.fits >= less.fits);
}

PLAN_PROPERTY(MoreMemoryNeverFitsLess) {
  const ModelSpec model = any_model();
  const PlanOptions less = any_options(model);
  PlanOptions more = less;
  if (*rc::gen::arbitrary<bool>()) {
    more.memory_bytes += *rc::gen::inRange<Amount>(0, Amount{1} << 36);
  } else {
    more.utilization_permille += *rc::gen::inRange(0, 1001 - less.utilization_permille);
  }
  const MemoryPlan a = made(model, less);
  const MemoryPlan b = made(model, more);
  has_no_less_room(b, a);
  RC_ASSERT(b.budget_bytes >= a.budget_bytes);
  if (less.pipeline_parallel == 1 && a.groups.size() == 1) {
    RC_ASSERT(b.num_blocks >= a.num_blocks);
    RC_ASSERT(b.kv_cache_bytes >= a.kv_cache_bytes);
  }
  RC_CLASSIFY(a.fits, "fits");
  RC_CLASSIFY(!a.fits && b.fits, "fits with more");
}

PLAN_PROPERTY(LongerContextNeverFitsMore) {
  const ModelSpec model = any_model();
  const PlanOptions shorter = any_options(model);
  PlanOptions longer = shorter;
  longer.context_tokens += *rc::gen::inRange<Amount>(0, 100'000);
  const MemoryPlan a = made(model, shorter);
  const MemoryPlan b = made(model, longer);
  RC_ASSERT(b.max_batch <= a.max_batch);
  RC_ASSERT(b.fits <= a.fits);
  if (a.stage == b.stage) RC_ASSERT(b.bytes_per_sequence >= a.bytes_per_sequence);
}

PLAN_PROPERTY(LargerBatchNeverHasLongerContext) {
  const ModelSpec model = any_model();
  const PlanOptions smaller = any_options(model);
  PlanOptions larger = smaller;
  larger.batch += *rc::gen::inRange<Amount>(0, 1000);
  const MemoryPlan a = made(model, smaller);
  const MemoryPlan b = made(model, larger);
  RC_ASSERT(b.max_context <= a.max_context);
  RC_ASSERT(b.max_batch == a.max_batch);
  RC_ASSERT(b.fits <= a.fits);
  RC_ASSERT(b.asked_kv_bytes >= a.asked_kv_bytes);
}

PLAN_PROPERTY(WhatIsAnsweredFitsAndOneMoreDoesNot) {
  const ModelSpec model = any_model();
  const PlanOptions options = any_options(model);
  const MemoryPlan plan = made(model, options);
  RC_ASSERT(plan.fits == (plan.max_batch >= options.batch));
  PlanOptions other = options;
  other.batch = std::max<Amount>(plan.max_batch, 1);
  RC_ASSERT(made(model, other).fits == (plan.max_batch > 0));
  constexpr Amount kMostBatch = 1 << 24;  // of stages that keep nothing
  if (plan.max_batch < kMostBatch) {
    other.batch = plan.max_batch + 1;
    RC_ASSERT(!made(model, other).fits);
  }
  other = options;
  if (plan.max_context > 0) {
    other.context_tokens = plan.max_context;
    RC_ASSERT(made(model, other).fits);
  }
  if (plan.context_limited_by == PlanLimit::kv_cache) {
    other.context_tokens = plan.max_context + 1;
    RC_ASSERT(!made(model, other).fits);
  }
  RC_CLASSIFY(plan.fits, "fits");
  RC_CLASSIFY(plan.context_limited_by == PlanLimit::max_position, "the longest context");
}

PLAN_PROPERTY(WhatTheModelReadsNeverTakesMoreThanAllTokens) {
  const ModelSpec model = any_model();
  PlanOptions full = any_options(model);
  full.target.reset();  // a cache with groups has larger tables than one without
  full.kept = KeptTokens::full;
  full.max_step_tokens = *rc::gen::element<Amount>(1, 512, 8192, 100'000);
  PlanOptions windows = full;
  windows.kept = KeptTokens::model;
  const MemoryPlan a = made(model, full);
  const MemoryPlan b = made(model, windows);
  if (!have_no_pages(a, b)) return;
  has_no_less_room(b, a);
  RC_CLASSIFY(!a.fits && b.fits, "fits with windows");
  if (a.stage != b.stage) return;
  RC_ASSERT(a.model_bytes_at_context <= a.full_bytes_at_context);
  RC_ASSERT(b.bytes_per_sequence <= a.bytes_per_sequence);
  RC_ASSERT(b.asked_kv_bytes <= a.asked_kv_bytes);
  RC_ASSERT(b.asked_total_bytes <= a.asked_total_bytes);
}

PLAN_PROPERTY(MoreRanksNeverHaveMoreBytesEach) {
  const ModelSpec model = any_model();
  PlanOptions fewer = any_options(model);
  PlanOptions more = fewer;
  more.tensor_parallel = *rc::gen::elementOf(tensor_parallel_choices(model));
  fewer.tensor_parallel = std::min(fewer.tensor_parallel, more.tensor_parallel);
  if (more.tensor_parallel % fewer.tensor_parallel != 0) fewer.tensor_parallel = 1;
  const MemoryPlan a = made(model, fewer);
  const MemoryPlan b = made(model, more);
  RC_ASSERT(b.activation_bytes <= a.activation_bytes);
  if (a.stage != b.stage) return;
  RC_ASSERT(b.weights_bytes <= a.weights_bytes);
  RC_ASSERT(b.kv_bytes_per_token <= a.kv_bytes_per_token);
  if (!have_no_pages(a, b)) return;
  RC_ASSERT(b.max_batch >= a.max_batch);
  RC_ASSERT(b.bytes_per_sequence <= a.bytes_per_sequence);
}

PLAN_PROPERTY(PartsAddUp) {
  const ModelSpec model = any_model();
  const PlanOptions options = any_options(model);
  const MemoryPlan plan = made(model, options);
  // The logits of more sequences than fit take some of the room of those that would.
  const bool has_logits_of_more =
      options.batch > std::max<Amount>(plan.max_batch, options.max_sequences);
  Amount pools = 0;
  Amount blocks = 0;
  for (const GroupPlan& group : plan.groups) {
    RC_ASSERT(has_logits_of_more || group.num_units >= plan.max_batch * group.units_per_sequence);
    pools += group.pool_bytes;
    if (plan.page_bytes == 0) {
      RC_ASSERT(group.pool_bytes == group.num_units * group.memory.unit_bytes);
    } else {
      RC_ASSERT(group.pool_bytes == group.num_pages * plan.page_bytes);
      RC_ASSERT(has_logits_of_more || group.num_pages >= plan.max_batch * group.pages_per_sequence);
      RC_ASSERT(group.blocks_per_page == plan.page_bytes / group.part_bytes);
      RC_ASSERT(group.num_pages * group.blocks_per_page >= group.num_units);
    }
    if (group.memory.block_size_tokens > 0) blocks += group.num_units;
  }
  RC_ASSERT((plan.page_bytes > 0 ? plan.kv_cache_bytes >= pools : plan.kv_cache_bytes == pools));
  RC_ASSERT((plan.page_bytes == 0 || plan.kv_cache_bytes == plan.num_pages * plan.page_bytes));
  RC_ASSERT(plan.num_blocks == blocks);
  RC_ASSERT(plan.total_bytes ==
            plan.weights_bytes + plan.kv_cache_bytes + plan.activation_bytes + plan.overhead_bytes);
  RC_ASSERT(plan.free_bytes == options.memory_bytes - plan.total_bytes);
  if (plan.kv_cache_bytes > 0) RC_ASSERT(plan.total_bytes <= plan.budget_bytes);
  RC_ASSERT(plan.fits == (plan.asked_total_bytes <= plan.budget_bytes && plan.max_batch > 0 &&
                          plan.max_batch >= options.batch));
}

PLAN_PROPERTY(SmallerElementsNeverTakeMore) {
  const ModelSpec model = any_model();
  PlanOptions wide = any_options(model);
  wide.kv_scale = ScaleKind::none;
  wide.kv = *find_storage_format("bf16");
  PlanOptions narrow = wide;
  narrow.kv = *find_storage_format(*rc::gen::element<std::string>("fp8_e4m3", "int8"));
  const MemoryPlan a = made(model, wide);
  const MemoryPlan b = made(model, narrow);
  if (have_no_pages(a, b)) has_no_less_room(b, a);
  wide.weights = *find_storage_format("bf16");
  narrow = wide;
  narrow.weights = *find_storage_format("fp8_e4m3");
  has_no_less_room(made(model, narrow), made(model, wide));
}

PLAN_PROPERTY(LargerBlocksNeverHoldASequenceInLess) {
  const ModelSpec model = any_model();
  KvMemoryOptions options{.format = any_format(),
                          .kept = *rc::gen::element(KeptTokens::full, KeptTokens::model),
                          .block_size_tokens = 1};
  const Amount length = *rc::gen::inRange<Amount>(0, 100'000);
  const auto token = group_memory(model, options).value();
  options.block_size_tokens = *rc::gen::element(2, 16, 24, 256);
  const auto block = group_memory(model, options).value();
  RC_ASSERT(token.size() == block.size());
  for (std::size_t i = 0; i < token.size(); ++i) {
    RC_ASSERT(token[i].bytes_per_token == block[i].bytes_per_token);
    RC_ASSERT(peak_units(block[i], length) >= units_at(block[i], length));
    const Amount tokens = units_at(token[i], length);
    if (block[i].block_size_tokens == 0) continue;
    RC_ASSERT(units_at(block[i], length) * options.block_size_tokens >= tokens);
    RC_ASSERT(units_at(block[i], length) * options.block_size_tokens <
              tokens + 2 * options.block_size_tokens);
    RC_ASSERT(block[i].unit_bytes >= (block[i].bytes_per_token + block[i].index_bytes_per_token) *
                                         options.block_size_tokens);
  }
}

PLAN_PROPERTY(StagesShareAllLayers) {
  const ModelSpec model = any_model();
  KvMemoryOptions options{.format = any_format(), .pipeline_parallel = *rc::gen::inRange(1, 40)};
  Amount layers = 0;
  for (; options.stage < options.pipeline_parallel; ++options.stage) {
    for (const GroupMemory& group : group_memory(model, options).value()) {
      layers += group.num_layers;
    }
  }
  Amount all = 0;
  for (const CacheGroup& group : model.groups) all += group.num_layers;
  RC_ASSERT(layers == all);
}

PLAN_PROPERTY(ChangesFitAndAreTheSmallest) {
  const ModelSpec model = any_model();
  PlanOptions options = any_options(model);
  options.memory_bytes = *rc::gen::inRange<Amount>(1, 400) << 29;
  const MemoryPlan plan = made(model, options);
  const auto changes = changes_that_fit(model, options);
  if (plan.fits) RC_ASSERT(changes.empty());
  RC_CLASSIFY(!changes.empty(), "can be helped");
  for (const PlanChange& change : changes) {
    RC_ASSERT(made(model, change.options).fits);
    PlanOptions almost = change.options;
    switch (change.field) {
      case PlanField::context_tokens: ++almost.context_tokens; break;
      case PlanField::batch: ++almost.batch; break;
      case PlanField::max_sequences: ++almost.max_sequences; break;
      case PlanField::tensor_parallel:
        RC_ASSERT(can_split_heads(model.shape, almost.tensor_parallel));
        do {
          --almost.tensor_parallel;
        } while (!can_split_heads(model.shape, almost.tensor_parallel));
        break;
      case PlanField::pipeline_parallel: --almost.pipeline_parallel; break;
      case PlanField::utilization_permille: --almost.utilization_permille; break;
      default: continue;
    }
    RC_ASSERT(!made(model, almost).fits);
  }
}

/// Any number at all, small and huge ones alike.
template <class T>
T any_number() {
  using Limits = std::numeric_limits<T>;
  const T edge = *rc::gen::element<T>(Limits::min(), -1, 0, 1, Limits::max());
  const T shift = *rc::gen::inRange<T>(0, Limits::digits);
  const T numbers[] = {edge, *rc::gen::arbitrary<T>(), static_cast<T>(T{1} << shift)};
  return numbers[*rc::gen::inRange(0, 3)];
}

PLAN_PROPERTY(AnyNumberIsAnsweredOrRefused) {
  ModelSpec model = any_model();
  PlanOptions options = any_options(model);
  using Change = std::function<void()>;
  const Change changes[] = {
      [&] { options.memory_bytes = any_number<Amount>(); },
      [&] { options.context_tokens = any_number<Amount>(); },
      [&] { options.batch = any_number<Amount>(); },
      [&] { options.block_size_tokens = any_number<std::int32_t>(); },
      [&] { options.tensor_parallel = any_number<std::int32_t>(); },
      [&] { options.max_step_tokens = any_number<Amount>(); },
      [&] { options.max_sequences = any_number<std::int32_t>(); },
      [&] { options.context_overhead_bytes = any_number<Amount>(); },
      [&] { options.graph_bytes = any_number<Amount>(); },
      [&] { options.utilization_permille = any_number<std::int32_t>(); },
      [&] { model.groups[0].num_layers = any_number<std::int32_t>(); },
      [&] { model.groups[0].num_kv_heads = any_number<std::int32_t>(); },
      [&] { model.groups[0].head_dim_k = any_number<std::int32_t>(); },
      [&] { model.groups[0].limit_tokens = any_number<Amount>(); },
      [&] { model.groups[0].state_elements = any_number<Amount>(); },
      [&] { model.groups[0].conv_elements = any_number<Amount>(); },
      [&] { model.groups[0].latent_dim = any_number<std::int32_t>(); },
      [&] { model.shape.hidden = any_number<std::int32_t>(); },
      [&] { model.shape.vocab = any_number<Amount>(); },
      [&] { model.shape.ffn = any_number<std::int32_t>(); },
      [&] { model.shape.num_kv_heads = any_number<std::int32_t>(); },
      [&] { model.shape.max_position = any_number<Amount>(); },
      [&] { model.weights_bytes = any_number<Amount>(); },
      [&] { model.parameters = any_number<Amount>(); },
  };
  const int count = *rc::gen::inRange(1, 5);
  for (int i = 0; i < count; ++i) {
    changes[*rc::gen::inRange<std::size_t>(0, std::size(changes))]();
  }
  const Result<MemoryPlan> plan = capacity::plan(model, options);
  RC_CLASSIFY(static_cast<bool>(plan), "answered");
  if (!plan) return;
  for (const Amount figure :
       {plan->weights_bytes, plan->kv_cache_bytes, plan->activation_bytes, plan->overhead_bytes,
        plan->total_bytes, plan->num_blocks, plan->kv_bytes_per_token, plan->bytes_per_sequence,
        plan->asked_kv_bytes, plan->asked_total_bytes, plan->max_batch, plan->max_context,
        plan->budget_bytes, plan->kv_fixed_bytes_per_sequence}) {
    RC_ASSERT(figure >= 0);
  }
  RC_ASSERT(plan->budget_bytes <= options.memory_bytes);
  if (plan->kv_cache_bytes > 0) RC_ASSERT(plan->total_bytes <= plan->budget_bytes);
}

}  // namespace
}  // namespace kvarena::capacity
