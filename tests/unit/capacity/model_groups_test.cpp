// The groups of every model, and the caches that they make on a host whose memory is reserved and
// never touched: predicted == allocated, and the sequences that a pool guarantees.

#include "kvarena/capacity/model_groups.hpp"
#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include "support/reserved_memory.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/footprint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kPool = 40'000'000'000;

KvMemoryOptions as_the_model(const ModelSpec& model) {
  const StorageFormat* format = find_storage_format(model.kv_format);
  return {.format = dtype_of(*format).has_value() ? *format : *find_storage_format("bf16"),
          .kept = KeptTokens::model};
}

KvCacheOptions options_of(const ModelSpec& model, const ModelGroups& groups) {
  return {.size = {.budget_bytes = kPool},
          .num_q_heads = model.shape.num_q_heads,
          .max_sequences = 64,
          .max_sequence_tokens = 131'072,
          .max_step_tokens = 512,
          .max_pins = 0,
          .num_threads = 1,
          .groups = groups.groups};
}

TEST(ModelGroups, PredictedIsAllocatedForEveryPreset) {
  int created = 0;
  int several = 0;
  for (const std::string_view name : model_preset_names()) {
    SCOPED_TRACE(name);
    const ModelSpec model = *find_model_preset(name);
    const Result<ModelGroups> groups = groups_of(model, as_the_model(model));
    ASSERT_OK(groups);
    test::ReservedMemory memory;
    const auto device =
        HostDevice::create(
            {.capacity_bytes = 200'000'000'000, .streams = HostStreams::manual, .memory = &memory})
            .value();
    const KvCacheOptions options = options_of(model, *groups);
    const Result<CacheFootprint> predicted = cache_footprint(options, target_of(*device).value());
    const Result<KvCache> cache = KvCache::create(*device, options);
    ASSERT_EQ(predicted.status(), cache.status());
    if (!predicted) {  // elements that no CPU computes with
      EXPECT_FAILS(predicted, unsupported, dtype);
      continue;
    }
    test::expect_as_predicted(*device, *cache, *predicted);
    EXPECT_EQ(predicted->num_blocks, kPool / cache->arena().groups()->page_bytes());
    ++created;
    several += cache->arena().groups()->groups().size() > 1 ? 1 : 0;
  }
  EXPECT_GE(created, 27);
  EXPECT_GE(several, 4);
}

struct Guaranteed {
  const char* name;
  std::int64_t tokens;
  std::int64_t page_bytes;
  std::int64_t pages_of_one;
  std::int64_t sequences;
};

void PrintTo(const Guaranteed& its, std::ostream* out) { *out << its.name; }

class GuaranteedSequences : public ::testing::TestWithParam<Guaranteed> {};

TEST_P(GuaranteedSequences, AreThoseOfTheTable) {
  const Guaranteed& expected = GetParam();
  const ModelSpec model = *find_model_preset(expected.name);
  const ModelGroups groups =
      groups_of(model, {.format = *find_storage_format("bf16"), .kept = KeptTokens::model}).value();
  const GroupLayout layout = GroupLayout::create(groups.groups, 131'072).value();
  EXPECT_EQ(layout.page_bytes(), expected.page_bytes);
  EXPECT_EQ(layout.pages_of_sequence(expected.tokens), expected.pages_of_one);
  EXPECT_EQ(kPool / layout.page_bytes() / layout.pages_of_sequence(expected.tokens),
            expected.sequences);
}

INSTANTIATE_TEST_SUITE_P(
    , GuaranteedSequences,
    ::testing::Values(Guaranteed{"Gemma-3-27B", 8192, 6'815'744, 103 + 65, 34},
                      Guaranteed{"gpt-oss-120b", 8192, 589'824, 512 + 9, 130},
                      Guaranteed{"Llama-4-Scout-17B-16E", 8192, 786'432, 512 + 1536, 24},
                      Guaranteed{"Qwen3-Next-80B-A3B", 8192, 4'325'376, 47 + 18, 142},
                      Guaranteed{"Nemotron-3-Nano-30B-A3B", 8192, 2'162'688, 24 + 23, 393},
                      Guaranteed{"DeepSeek-V3", 8192, 1'124'352, 512, 69},
                      Guaranteed{"Phi-3-mini-4k-instruct", 4096, 6'291'456, 129, 49}),
    [](const auto& tested) {
      std::string name = tested.param.name;
      std::erase_if(name, [](char c) { return c == '-'; });
      return name;
    });

KvMemoryOptions bf16(KeptTokens kept) {
  return {.format = *find_storage_format("bf16"), .kept = kept};
}

// What a cache of these groups computes is what the plan says, for every preset that it can hold.
TEST(ModelGroups, HaveThePagesOfThePlan) {
  std::size_t held = 0;
  for (const std::string_view name : model_preset_names()) {
    const ModelSpec model = *find_model_preset(name);
    for (const KeptTokens kept : {KeptTokens::full, KeptTokens::model}) {
      const Result<ModelGroups> groups = groups_of(model, bf16(kept));
      if (!groups) {
        EXPECT_EQ(groups.status().code, StatusCode::unsupported) << name;
        continue;
      }
      ++held;
      const GroupLayout layout =
          GroupLayout::create(groups->groups, model.shape.max_position).value();
      const MemoryPlan planned = plan(model, {.memory_bytes = std::int64_t{4000} << 30,
                                              .kv = *find_storage_format("bf16"),
                                              .kept = kept,
                                              .context_tokens = model.shape.max_position})
                                     .value();
      const std::int64_t page =
          planned.page_bytes > 0 ? planned.page_bytes : planned.block_bytes.value();
      EXPECT_EQ(layout.page_bytes(), page) << name;
      EXPECT_EQ(layout.pages_of_sequence(model.shape.max_position) * page,
                planned.bytes_per_sequence)
          << name;
      // Layers of Nemotron that are MLPs alone keep nothing.
      std::int32_t keeping = 0;
      for (const CacheGroup& group : model.groups)
        keeping += group.num_layers + group.num_sharing_layers;
      for (std::int32_t layer = 0; layer < layout.num_layers(); ++layer) {
        keeping -= layout.has_layer(layer) || layout.has_state(layer) ? 1 : 0;
        EXPECT_FALSE(layout.has_layer(layer) && layout.has_state(layer)) << name;
      }
      EXPECT_EQ(keeping, 0) << name;
    }
  }
  EXPECT_GE(held, 50u);
}

TEST(ModelGroups, StagesShareTheLayers) {
  const ModelSpec model = *find_model_preset("Gemma-3-27B");
  std::set<std::int32_t> seen;
  for (std::int32_t stage = 0; stage < 3; ++stage) {
    KvMemoryOptions options = bf16(KeptTokens::model);
    options.pipeline_parallel = 3;
    options.stage = stage;
    const ModelGroups groups = groups_of(model, options).value();
    ASSERT_EQ(groups.groups.size(), 2u);
    EXPECT_EQ(groups.groups[0].layers.size(), stage == 1 ? 4u : 3u);
    for (const LayerGroup& group : groups.groups) {
      for (const GroupLayer& layer : group.layers) EXPECT_TRUE(seen.insert(layer.layer).second);
    }
  }
  EXPECT_EQ(seen.size(), 62u);
}

TEST(ModelGroups, LayersThatKeepDataOfTwoKinds) {
  const CacheGroup own{.num_layers = 2,
                       .num_sharing_layers = 1,
                       .num_kv_heads = 4,
                       .head_dim_k = 64,
                       .head_dim_v = 64,
                       .layers = {{0, -1}, {1, -1}, {2, 1}}};
  CacheGroup cross = own;
  cross.kind = CacheKind::cross;
  cross.limit_tokens = 100;
  ModelSpec model;
  model.shape.num_layers = 3;
  model.shape.num_q_heads = 4;
  model.groups = {own, cross};
  const ModelGroups groups = groups_of(model, bf16(KeptTokens::full)).value();
  ASSERT_EQ(groups.groups.size(), 2u);
  EXPECT_EQ(groups.groups[1].layers[0].layer, 3);
  EXPECT_EQ(groups.groups[1].layers[2].layer, 5);
  EXPECT_EQ(groups.groups[1].layers[2].reads_layer, 4);
}

// Latents of 656 bytes in 8 bits, with keys of an index of 132 bytes.
TEST(ModelGroups, SparseAttentionHasRowsAndAnIndexOfItsOwn) {
  const ModelSpec model = *find_model_preset("DeepSeek-V3.2");
  const ModelGroups groups = groups_of(model, {.format = *find_storage_format("fp8_e4m3")}).value();
  ASSERT_EQ(groups.groups.size(), 1U);
  EXPECT_EQ(groups.groups[0].dtype, DType::latent_fp8);
  EXPECT_EQ(groups.groups[0].index_dim, 128);
  const GroupLayout layout = GroupLayout::create(groups.groups, 131'072).value();
  EXPECT_EQ(layout.page_bytes(), 61 * 16 * (656 + 132));
  test::ReservedMemory memory;
  const auto device = HostDevice::create({.capacity_bytes = std::uint64_t{64} << 30,
                                          .streams = HostStreams::manual,
                                          .memory = &memory})
                          .value();
  const auto blocks = layout.pages_of_sequence(975'424);
  const Arena arena = Arena::create(*device, layout, {.size = {.num_blocks = blocks}}).value();
  EXPECT_EQ(arena.bytes(), 46'886'680'832);
  const ModelGroups wide = groups_of(model, bf16(KeptTokens::model)).value();
  EXPECT_EQ(wide.groups[0].dtype, DType::bf16);
  EXPECT_EQ(wide.groups[0].index_dim, 128);
}

TEST(ModelGroups, ScalesForEachTokenAreThoseOfFp8) {
  const ModelGroups groups =
      groups_of(*find_model_preset("Gemma-3-27B"),
                {.format = *find_storage_format("fp8_e4m3"), .scale = ScaleKind::per_token_head})
          .value();
  ASSERT_EQ(groups.groups.size(), 2U);
  for (const LayerGroup& group : groups.groups) {
    EXPECT_EQ(group.scale, ScaleKind::per_token_head);
  }
}

TEST(ModelGroups, AreRefusedByName) {
  const ModelSpec model = *find_model_preset("Gemma-3-27B");
  EXPECT_REFUSES(groups_of(model, {.format = *find_storage_format("q8_0")}), unsupported, format);
  EXPECT_REFUSES(groups_of(model, {.format = *find_storage_format("int8"),
                                   .scale = ScaleKind::per_token_head}),
                 unsupported, scale);
  EXPECT_REFUSES(groups_of(model, {.format = *find_storage_format("bf16"), .block_size_tokens = 0}),
                 invalid_argument, block_size_tokens);
  const ModelGroups whole =
      groups_of(model, {.format = *find_storage_format("bf16"), .kept = KeptTokens::full}).value();
  ASSERT_EQ(whole.groups.size(), 1U) << "windows that are kept whole";
  EXPECT_EQ(whole.layers[0].size(), 62U);
  ModelSpec unknown = *find_model_preset("Llama-3.1-8B");
  unknown.groups.front().layers.clear();
  EXPECT_REFUSES(groups_of(unknown, bf16(KeptTokens::full)), invalid_argument, num_layers);
}

}  // namespace
}  // namespace kvarena::capacity
