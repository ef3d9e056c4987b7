// Plans by hand-worked examples and against what makes them up.

#include "kvarena/capacity/memory_plan.hpp"

#include "kvarena/capacity/model_presets.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

MemoryPlan plan_of(std::string_view name, PlanOptions options) {
  if (options.memory_bytes == 0) options.memory_bytes = 80 * kGiB;
  return plan(*find_model_preset(name), options).value();
}

TEST(Plan, MakesUpItsTotal) {
  for (const std::string_view name : model_preset_names()) {
    if (name == "GLM-5") continue;  // nobody has published its parameters
    const MemoryPlan p = plan_of(name, {.memory_bytes = 2000 * kGiB, .context_tokens = 4096});
    EXPECT_TRUE(p.fits) << name;
    EXPECT_EQ(p.total_bytes,
              p.weights_bytes + p.kv_cache_bytes + p.activation_bytes + p.overhead_bytes);
    EXPECT_LE(p.total_bytes, p.budget_bytes) << name;
    EXPECT_EQ(p.free_bytes, 2000 * kGiB - p.total_bytes);
    std::int64_t pools = 0;
    for (const GroupPlan& group : p.groups) {
      pools += group.pool_bytes;
      EXPECT_GE(group.num_units, p.max_batch * group.units_per_sequence) << name;
    }
    if (p.page_bytes > 0) {  // pages that are left belong to no group
      EXPECT_EQ(p.kv_cache_bytes, p.num_pages * p.page_bytes);
      EXPECT_GE(p.kv_cache_bytes, pools);
      EXPECT_LT(p.budget_bytes - p.total_bytes, p.page_bytes) << name;
    } else {
      EXPECT_EQ(p.kv_cache_bytes, pools);
    }
    EXPECT_LT(p.max_batch * p.bytes_per_sequence, p.kv_cache_bytes + p.bytes_per_sequence);
    if (p.groups.size() == 1) {
      EXPECT_EQ(p.kv_cache_bytes, p.num_blocks * p.block_bytes.value());
      EXPECT_LT(p.budget_bytes - p.total_bytes, p.block_bytes.value()) << name;
    }
  }
}

TEST(Plan, WeightsAsTheyAreStored) {
  EXPECT_EQ(plan_of("Qwen2.5-0.5B", {}).weights_bytes, 988'065'536);
  EXPECT_EQ(plan_of("Phi-3-mini-4k-instruct", {}).weights_bytes, 2 * 3'821'079'552);
  EXPECT_EQ(plan_of("Llama-3.1-8B", {}).weights_bytes, 16'060'522'496);
  const StorageFormat q8 = *find_storage_format("q8_0");
  EXPECT_EQ(plan_of("Qwen2.5-0.5B", {.weights = q8}).weights_bytes, 494'032'768 / 32 * 34);
  EXPECT_EQ(plan_of("gpt-oss-20b", {}).weights_bytes, 13'761'264'768) << "its index's total_size";
}

/// Llama-3.1-8B in 4 bits: 6.98 G parameters of layers, 1.05 G of embedding and head.
ModelSpec quantised_llama() {
  ModelSpec model = *find_model_preset("Llama-3.1-8B");
  model.weights_format = "int4";
  model.ends_weights_format = "f16";
  model.weights_quantised = true;
  return model;
}

TEST(Plan, QuantisedWeightsAreAnEstimateWithoutHeaders) {
  constexpr std::int64_t kEnds = 2 * std::int64_t{128'256} * 4096 + 4096;
  PlanOptions options{.memory_bytes = 80 * kGiB, .context_tokens = 4096};
  ModelSpec model = quantised_llama();
  const MemoryPlan counted = plan(model, options).value();
  EXPECT_FALSE(counted.weights_exact);
  EXPECT_EQ(counted.weights_bytes, (8'030'261'248 - kEnds) / 2 + 2 * kEnds);
  model.weights_bytes = 5'734'000'000;
  EXPECT_TRUE(plan(model, options).value().weights_exact);
  EXPECT_EQ(plan(model, options)->weights_bytes, 5'734'000'000);
  options.weights = *find_storage_format("int4");
  EXPECT_FALSE(plan(model, options).value().weights_exact) << "all of them in 4 bits";
  EXPECT_EQ(plan(model, options)->weights_bytes, 8'030'261'248 / 2);
}

TEST(Plan, ThePublishedFormatKeepsTheHeadersBytes) {
  ModelSpec model = *find_model_preset("Llama-3.1-8B");
  model.weights_bytes = *model.parameters * 2 + 256;  // a table that is no parameter
  PlanOptions options{.memory_bytes = 80 * kGiB, .context_tokens = 4096};
  options.weights = *find_storage_format("bf16");
  const MemoryPlan same = plan(model, options).value();
  EXPECT_TRUE(same.weights_exact);
  EXPECT_EQ(same.weights_bytes, *model.weights_bytes);
  options.weights = *find_storage_format("fp8_e4m3");
  const MemoryPlan other = plan(model, options).value();
  EXPECT_FALSE(other.weights_exact);
  EXPECT_EQ(other.weights_bytes, *model.parameters);
}

TEST(Plan, BytesOfHeadersAreSharedAsTheParametersAre) {
  for (const char* name : {"Qwen2.5-0.5B", "Llama-3.1-8B"}) {
    const ModelSpec counted = *find_model_preset(name);
    ModelSpec read = counted;
    read.weights_bytes = 2 * *counted.parameters;
    for (const std::int32_t tp : {1, 2, 16}) {
      if (std::ranges::count(tensor_parallel_choices(counted), tp) == 0) continue;
      for (const std::int32_t pp : {1, 3, 4}) {
        const PlanOptions options{.memory_bytes = 80 * kGiB,
                                  .context_tokens = 4096,
                                  .tensor_parallel = tp,
                                  .pipeline_parallel = pp};
        const MemoryPlan a = plan(counted, options).value();
        const MemoryPlan b = plan(read, options).value();
        EXPECT_EQ(a.stage, b.stage);
        if (tp == 1) {
          EXPECT_EQ(a.weights_bytes, b.weights_bytes) << name << " pp " << pp;
        }
        EXPECT_GE(b.weights_bytes, a.weights_bytes);  // tp: copies of KV heads have bytes too
        EXPECT_LT(b.weights_bytes, a.weights_bytes + (1 << 20));
      }
    }
  }
  EXPECT_REFUSES(plan(*find_model_preset("Llama-3.1-8B"),
                      {.memory_bytes = 80 * kGiB, .pipeline_parallel = 33}),
                 invalid_argument, pipeline_parallel);
}

TEST(Plan, CountsWhatAModelReadsUnlessToldToCountAll) {
  const PlanOptions options{.memory_bytes = 80 * kGiB, .context_tokens = 32'768};
  const MemoryPlan p = plan_of("Gemma-3-27B", options);
  EXPECT_EQ(options.kept, KeptTokens::model);
  EXPECT_EQ(KvMemoryOptions{}.kept, KeptTokens::model);
  EXPECT_EQ(p.groups.size(), 2U);
  PlanOptions whole = options;
  whole.kept = KeptTokens::full;
  EXPECT_EQ(plan_of("Gemma-3-27B", whole).groups.size(), 1U);
  EXPECT_GT(p.max_batch, plan_of("Gemma-3-27B", whole).max_batch);
}

TEST(Plan, WindowsHaveRoomForAStep) {
  const PlanOptions options{.memory_bytes = 80 * kGiB,
                            .kept = KeptTokens::model,
                            .context_tokens = 32'768,
                            .max_step_tokens = 8192};
  const MemoryPlan p = plan_of("Gemma-3-27B", options);
  ASSERT_EQ(p.groups.size(), 2U);
  EXPECT_EQ(p.groups[1].units_per_sequence, 65);
  EXPECT_EQ(p.max_batch, 5);
  EXPECT_EQ(p.groups[1].num_units, 5 * 65 + 5 + (8192 - 5 * 2) / 16) << "the second begins a block";
  EXPECT_EQ(p.step_bytes, 512 * p.groups[1].memory.unit_bytes);
  EXPECT_EQ(plan_of("Gemma-3-27B", {.kept = KeptTokens::model, .context_tokens = 1024}).step_bytes,
            0);
}

// One sequence of 4,096 tokens never holds more than its 256 blocks, whatever a step's tokens are.
TEST(Plan, AWindowNeverTakesMoreThanTheWholeSequences) {
  PlanOptions options{.memory_bytes = 11 * kGiB,
                      .kept = KeptTokens::full,
                      .context_tokens = 4096,
                      .max_step_tokens = 4096};
  const MemoryPlan full = plan_of("Phi-3-mini-4k-instruct", options);
  options.kept = KeptTokens::model;
  const MemoryPlan window = plan_of("Phi-3-mini-4k-instruct", options);
  EXPECT_EQ(full.asked_kv_bytes, 1'610'612'736);
  EXPECT_EQ(window.asked_kv_bytes, 1'610'612'736) << "a step reads all of its tokens";
  EXPECT_EQ(window.model_bytes_at_context, 1'610'612'736 / 2);
  EXPECT_EQ(full.fits, window.fits);
  options.max_step_tokens = 512;
  EXPECT_EQ(plan_of("Phi-3-mini-4k-instruct", options).asked_kv_bytes, (129 + 32) * 16 * 393'216);
  options.batch = 100;
  EXPECT_EQ(plan_of("Phi-3-mini-4k-instruct", options).asked_kv_bytes,
            (100 * 129 + 100 + (512 - 100 * 3) / 16) * 16 * std::int64_t{393'216});

  options = {.memory_bytes = 80 * kGiB, .kept = KeptTokens::full, .context_tokens = 8192};
  const MemoryPlan gemma = plan_of("Gemma-2-9B", options);
  EXPECT_EQ(gemma.asked_kv_bytes, 2'818'572'288);
  options.kept = KeptTokens::model;
  EXPECT_EQ(plan_of("Gemma-2-9B", options).asked_kv_bytes, 2'818'572'288);
}

TEST(Plan, SaysWhatLimitsIt) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  // The logits of 30,000 rows leave nothing; one sequence has room.
  PlanOptions options{.memory_bytes = 25'250'627'584, .context_tokens = 16, .batch = 30'000};
  const MemoryPlan rows = plan_of("Llama-3.1-8B", options);
  EXPECT_FALSE(rows.fits);
  EXPECT_GT(rows.max_batch, 256);
  EXPECT_EQ(rows.batch_limited_by, PlanLimit::kv_cache) << "most of it is K and V";
  EXPECT_EQ(rows.max_context, 0);
  EXPECT_EQ(rows.context_limited_by, PlanLimit::activations);
  options = {.memory_bytes = 4 * kGiB, .block_size_tokens = 1, .context_tokens = 1};
  EXPECT_EQ(plan_of("Qwen2.5-0.5B", options).batch_limited_by, PlanLimit::activations);
  options = {.memory_bytes = 24 * kGiB, .context_tokens = 4096};
  EXPECT_EQ(plan_of("Llama-3.1-8B", options).batch_limited_by, PlanLimit::kv_cache);
  options = {.memory_bytes = 16 * kGiB, .context_tokens = 4096};
  EXPECT_EQ(plan_of("Llama-3.1-8B", options).batch_limited_by, PlanLimit::weights);
  EXPECT_EQ(plan_of("Llama-3.1-8B", options).context_limited_by, PlanLimit::weights);

  options = {.memory_bytes = kMost, .context_tokens = 32, .batch = 1 << 24};
  options.target = CacheTarget{.kind = DeviceKind::cuda, .num_sms = 132};
  const MemoryPlan caps = plan_of("Qwen2.5-0.5B", options);
  EXPECT_EQ(caps.max_context, 256) << "x 2^24 sequences: 2^28 blocks, the most of a pool";
  EXPECT_EQ(caps.context_limited_by, PlanLimit::num_blocks);
  EXPECT_EQ(caps.max_batch, 1 << 24);
  EXPECT_EQ(caps.batch_limited_by, PlanLimit::num_sequences);
  options = {.memory_bytes = kMost, .context_tokens = 32'768};
  const MemoryPlan blocks = plan_of("Qwen2.5-0.5B", options);
  EXPECT_EQ(blocks.max_batch, KvLayout::kMaxBlocks / 2048);
  EXPECT_EQ(blocks.batch_limited_by, PlanLimit::num_blocks);
  for (const PlanLimit limit :
       {PlanLimit::weights, PlanLimit::kv_cache, PlanLimit::activations, PlanLimit::max_position,
        PlanLimit::num_blocks, PlanLimit::num_sequences}) {
    EXPECT_NE(name_of(limit), "unknown");
  }
}

std::vector<PlanChange> changes_of(std::string_view name, const PlanOptions& options) {
  return changes_that_fit(*find_model_preset(name), options);
}

TEST(Plan, TriesEveryKindOfChange) {
  const auto has = [](const std::vector<PlanChange>& changes, PlanField field) {
    return std::ranges::any_of(changes, [&](const auto& c) { return c.field == field; });
  };
  const PlanOptions l4{.memory_bytes = 23'000'000'000};
  const std::vector<PlanChange> stages = changes_of("Llama-3.1-405B", l4);
  ASSERT_TRUE(has(stages, PlanField::pipeline_parallel)) << "no weights of a whole model";
  EXPECT_LE(stages.back().options.pipeline_parallel, 126);

  const PlanOptions long_context{
      .memory_bytes = 72 * kGiB, .kept = KeptTokens::full, .context_tokens = 96'000};
  EXPECT_TRUE(has(changes_of("Gemma-3-27B", long_context), PlanField::kept));

  const PlanOptions a100{.memory_bytes = 80 * kGiB, .context_tokens = 100'000, .batch = 5};
  std::vector<std::string_view> formats;
  for (const PlanChange& change : changes_of("Llama-3.1-8B", a100)) {
    if (change.field == PlanField::kv) formats.push_back(change.options.kv->name);
  }
  EXPECT_EQ(formats, (std::vector<std::string_view>{"q8_0", "fp8_e4m3", "int8"}))
      << "eight bits do";

  PlanOptions many{.memory_bytes = 24 * kGiB, .context_tokens = 16'384, .max_step_tokens = 16'384};
  many.max_sequences = 8192;
  EXPECT_TRUE(has(changes_of("Llama-3.1-8B", many), PlanField::max_sequences));
}

// 64 query heads over 4 KV heads; 470 GB of weights.
TEST(Plan, TriesRanksThatTheHeadsCanBeSplitOver) {
  const auto ranks_of = [](std::string_view model, PlanOptions options) {
    for (const PlanChange& change : changes_of(model, options)) {
      if (change.field == PlanField::tensor_parallel) return change.options.tensor_parallel;
    }
    return 0;
  };
  PlanOptions h100{.memory_bytes = 85'520'809'984, .context_tokens = 4096};
  for (const std::int32_t ranks : {1, 2, 4}) {
    h100.tensor_parallel = ranks;
    EXPECT_EQ(ranks_of("Qwen3-235B-A22B", h100), 8) << "from " << ranks;
  }
  // 40 query heads over 8 KV heads: neither 5 nor 10.
  const PlanOptions scout{.memory_bytes = 52 * kGiB, .context_tokens = 4096};
  EXPECT_EQ(ranks_of("Llama-4-Scout-17B-16E", scout), 8) << "218 GB / 5 would fit";
}

TEST(Plan, RefusesRanksThatTheHeadsCannotBeSplitOver) {
  const auto choices = [](const char* model) {
    return tensor_parallel_choices(*find_model_preset(model));
  };
  EXPECT_EQ(choices("Llama-3.1-8B"), (std::vector<std::int32_t>{1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(choices("Qwen2.5-0.5B"), (std::vector<std::int32_t>{1, 2, 14}));
  EXPECT_EQ(choices("Llama-4-Scout-17B-16E"), (std::vector<std::int32_t>{1, 2, 4, 8, 40}));
  const ModelSpec llama = *find_model_preset("Llama-3.1-8B");
  for (std::int32_t ranks = 1; ranks <= 64; ++ranks) {
    const PlanOptions options{
        .memory_bytes = 80 * kGiB, .context_tokens = 4096, .tensor_parallel = ranks};
    const auto made = plan(llama, options);
    EXPECT_EQ(made.is_ok(), std::ranges::count(choices("Llama-3.1-8B"), ranks) == 1) << ranks;
    if (!made) {
      EXPECT_FAILS(made, unsupported, num_q_heads);
    }
  }
}

TEST(Plan, KeepsKAndVOfAModelWithoutKnownWeights) {
  ModelSpec model = *find_model_preset("Llama-3.1-8B");
  const PlanOptions options{.memory_bytes = 80 * kGiB, .context_tokens = 4096};
  const MemoryPlan known = plan(model, options).value();
  model.parts.clear();
  model.parameters.reset();
  const MemoryPlan unknown = plan(model, options).value();
  EXPECT_FALSE(unknown.weights_known);
  EXPECT_FALSE(unknown.weights_exact);
  EXPECT_EQ(unknown.asked_kv_bytes, known.asked_kv_bytes);
  EXPECT_EQ(unknown.kv_bytes_per_token, known.kv_bytes_per_token);
  EXPECT_EQ(unknown.asked_total_bytes, known.asked_total_bytes - known.weights_bytes);
  EXPECT_FAILS(cache_options(model, options, unknown), unsupported, none);
}

TEST(Plan, NamesACacheOnlyWhereThereIsOne) {
  const ModelSpec llama = *find_model_preset("Llama-3.1-8B");
  const CacheTarget gpu{.kind = DeviceKind::cuda, .num_sms = 132};
  for (const char* format : {"bf16", "f16", "f32", "fp8_e4m3", "int8", "q8_0"}) {
    const PlanOptions options{.memory_bytes = 80 * kGiB,
                              .kv = *find_storage_format(format),
                              .context_tokens = 4096,
                              .target = gpu};
    const MemoryPlan planned = plan(llama, options).value();
    const auto cache = cache_options(llama, options, planned);
    EXPECT_EQ(cache.is_ok(), planned.table_bytes > 0) << format;
    if (cache) {
      EXPECT_OK(cache_footprint(cache->options, gpu));
    }
  }
}

TEST(Plan, TheTightestRankDecides) {
  const MemoryPlan one = plan_of("Llama-3.1-8B", {.context_tokens = 4096});
  const MemoryPlan two = plan_of("Llama-3.1-8B", {.context_tokens = 4096, .tensor_parallel = 2});
  EXPECT_LT(two.weights_bytes, one.weights_bytes / 2 + (1 << 20));
  EXPECT_EQ(two.kv_bytes_per_token, one.kv_bytes_per_token / 2);
  const MemoryPlan stages =
      plan_of("Llama-3.1-8B", {.context_tokens = 4096, .pipeline_parallel = 3});
  EXPECT_EQ(stages.kv_bytes_per_token, 11 * 4096) << "32 layers over 3 stages: 11, 11, 10";
  EXPECT_EQ(stages.stage, 0) << "11 layers and the embedding";
}

TEST(Plan, WhatDoesNotFitSaysWhatWould) {
  const ModelSpec llama = *find_model_preset("Llama-3.1-8B");
  PlanOptions options{.memory_bytes = 24 * kGiB, .context_tokens = 131'072};
  const MemoryPlan now = plan(llama, options).value();
  EXPECT_FALSE(now.fits);
  EXPECT_EQ(now.max_batch, 0);
  EXPECT_EQ(now.batch_limited_by, PlanLimit::kv_cache);
  EXPECT_GT(now.max_context, 16'384);
  EXPECT_GT(now.num_blocks, 0);
  const auto changes = changes_that_fit(llama, options);
  ASSERT_GE(changes.size(), 2U);
  EXPECT_EQ(changes[0].field, PlanField::context_tokens);
  EXPECT_EQ(changes[0].options.context_tokens, now.max_context);
  for (const PlanChange& change : changes) EXPECT_TRUE(plan(llama, change.options)->fits);
  options.context_tokens = now.max_context + 1;
  EXPECT_FALSE(plan(llama, options)->fits) << "the change is the smallest";

  options = {.memory_bytes = 16 * kGiB};
  const MemoryPlan none = plan(llama, options).value();
  EXPECT_EQ(none.batch_limited_by, PlanLimit::weights);
  EXPECT_EQ(none.num_blocks, 0);
  EXPECT_LT(none.budget_bytes, none.total_bytes);
  EXPECT_EQ(plan_of("Llama-3.1-8B", {.context_tokens = 200'000}).batch_limited_by,
            PlanLimit::max_position);
}

TEST(Plan, TheLongestContextFitsAndOneMoreDoesNot) {
  for (const char* name : {"Llama-3.1-8B", "Qwen2.5-0.5B", "Gemma-3-27B", "Qwen3.5-27B"}) {
    for (const std::int64_t batch : {1, 7, 100}) {
      const ModelSpec model = *find_model_preset(name);
      PlanOptions options{.memory_bytes = 64 * kGiB,
                          .context_tokens = 512,
                          .batch = batch,
                          .target = CacheTarget{.kind = DeviceKind::cuda, .num_sms = 132}};
      const MemoryPlan first = plan(model, options).value();
      options.context_tokens = first.max_context;
      EXPECT_TRUE(first.max_context == 0 || plan(model, options)->fits) << name << " x " << batch;
      options.context_tokens = first.max_context + 1;
      EXPECT_FALSE(plan(model, options)->fits) << name << " x " << batch;
    }
  }
}

/// The value of the line of that name, and its arithmetic.
PlanLine line_of(const MemoryPlan& plan, std::string_view name) {
  const auto found = std::ranges::find(plan.lines, name, &PlanLine::name);
  EXPECT_NE(found, plan.lines.end()) << name;
  return found == plan.lines.end() ? PlanLine{} : *found;
}

TEST(Plan, ShowsItsArithmetic) {
  const CacheTarget gpu{.kind = DeviceKind::cuda, .num_sms = 132};
  const MemoryPlan p = plan_of("Llama-3.1-8B", {.memory_bytes = 85'520'809'984, .target = gpu});
  EXPECT_EQ(line_of(p, "parameters").value, 8'030'261'248);
  EXPECT_EQ(line_of(p, "activations").arithmetic,
            "134,217,728 + max(167,772,160, 704,643,072, 197,001,216)");
  EXPECT_EQ(line_of(p, "full attention: blocks a sequence").arithmetic, "131,072 / 16");
  EXPECT_EQ(line_of(p, "largest batch").arithmetic, "floor(59,417,746,073 / 17,179,869,184)");
  EXPECT_EQ(line_of(p, "largest batch").value, 3);
  EXPECT_EQ(line_of(p, "attention workspaces").value + line_of(p, "block tables").value,
            p.table_bytes);
  EXPECT_EQ(line_of(p, "block tables").arithmetic,
            "2 x (2 x 4 x 28,332 blocks + 32 x 256 sequences) x 4 B + 8,192 tokens x 8 B + 9,728 B "
            "of the rows");
  EXPECT_EQ(line_of(p, "attention workspaces").arithmetic,
            "(256 rows + 8 x 264 / 8 + 1) x 8 x 8 columns x (8 + 4 x 128) B + 70,269,952 B of many "
            "query columns and of schedules");
  EXPECT_EQ(line_of(p, "total asked for").value, p.asked_total_bytes);
  EXPECT_EQ(line_of(p, "free").value, p.free_bytes);
  EXPECT_EQ(line_of(p, "longest context").value, p.max_context);
  EXPECT_EQ(line_of(plan_of("Gemma-3-27B", {.kept = KeptTokens::model, .context_tokens = 8192}),
                    "sliding window: blocks a sequence")
                .arithmetic,
            "ceil(min(8,192, 1,024 + 15) / 16)");
  EXPECT_EQ(line_of(plan_of("GLM-4.5", {}), "everything else").arithmetic,
            "92 layers x ceil((355,000,000,000 (published, rounded) - 335,963,750,400 of the "
            "experts) / 92)");
}

// docs/explanation/capacity.md, two examples by hand.
TEST(Plan, WorksTheExamplesOfTheDocumentation) {
  const auto on = [](std::int64_t memory_bytes, std::int32_t num_sms, std::int64_t context) {
    return PlanOptions{.memory_bytes = memory_bytes,
                       .kept = KeptTokens::full,
                       .context_tokens = context,
                       .target = CacheTarget{.kind = DeviceKind::cuda, .num_sms = num_sms}};
  };
  const MemoryPlan qwen = plan_of("Qwen2.5-0.5B", on(24'152'899'584, 58, 2048));
  EXPECT_EQ(qwen.asked_kv_bytes, 25'165'824);
  EXPECT_EQ(qwen.activation_bytes, 268'435'456);
  EXPECT_EQ(qwen.overhead_bytes, 583'172'608);
  EXPECT_EQ(qwen.asked_total_bytes, 1'864'839'424);
  const MemoryPlan phi = plan_of("Phi-3-mini-4k-instruct", on(25'250'627'584, 128, 4096));
  EXPECT_EQ(phi.asked_kv_bytes, 1'610'612'736);
  EXPECT_EQ(phi.activation_bytes, 503'316'480);
  EXPECT_EQ(phi.overhead_bytes, 648'713'728);
  EXPECT_EQ(phi.asked_total_bytes, 10'404'802'048);
}

TEST(Plan, RefusesNonsense) {
  const ModelSpec llama = *find_model_preset("Llama-3.1-8B");
  EXPECT_REFUSES(plan(llama, {}), invalid_argument, memory_bytes);
  using O = PlanOptions;
  const struct {
    Option option;
    void (*change)(PlanOptions& options);
  } wrong[] = {
      {Option::utilization_permille, [](O& o) { o.utilization_permille = 1001; }},
      {Option::batch, [](O& o) { o.batch = 0; }},
      {Option::kept, [](O& o) { o.kept = static_cast<KeptTokens>(99); }},
      {Option::kv_scale, [](O& o) { o.kv_scale = static_cast<ScaleKind>(99); }},
      {Option::tensor_parallel, [](O& o) { o.tensor_parallel = 0; }},
      {Option::block_size_tokens, [](O& o) { o.block_size_tokens = 0; }},
      {Option::context_tokens, [](O& o) { o.context_tokens = -1; }},
  };
  for (const auto& [option, change] : wrong) {
    PlanOptions options{.memory_bytes = kGiB};
    change(options);
    EXPECT_TRUE(test::fails_with(plan(llama, options), StatusCode::invalid_argument, option))
        << name_of(option);
  }
  ModelSpec nothing = llama;
  nothing.parameters.reset();
  nothing.parts.clear();
  EXPECT_FALSE(plan(nothing, {.memory_bytes = kGiB}).value().weights_known);
  nothing = llama;
  nothing.groups[0].kind = static_cast<CacheKind>(99);
  EXPECT_REFUSES(plan(nothing, {.memory_bytes = kGiB}), invalid_argument, kind);
  nothing.groups.clear();
  EXPECT_REFUSES(plan(nothing, {.memory_bytes = kGiB}), invalid_argument, groups);
}

TEST(Plan, DoesNotOverflow) {
  ModelSpec huge = *find_model_preset("Llama-3.1-405B");
  huge.groups[0].num_layers = 4096;
  huge.groups[0].num_kv_heads = 4096;
  huge.groups[0].head_dim_k = 4096;
  huge.groups[0].head_dim_v = 4096;
  huge.shape.max_position = std::int64_t{1} << 40;
  const MemoryPlan p =
      plan(huge, {.memory_bytes = std::numeric_limits<std::int64_t>::max(), .batch = 1 << 24})
          .value();
  EXPECT_FALSE(p.fits);
  EXPECT_GE(p.total_bytes, 0);
  EXPECT_EQ(p.asked_kv_bytes, std::numeric_limits<std::int64_t>::max());
}

}  // namespace
}  // namespace kvarena::capacity
