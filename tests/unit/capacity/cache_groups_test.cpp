// The groups of caches for models: the same bytes as plans have, and every layer in its group.

#include "kvarena/capacity/cache_groups.hpp"

#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <set>

namespace kvarena::capacity {
namespace {

KvMemoryOptions bf16(KeptTokens kept) {
  return {.format = *find_storage_format("bf16"), .kept = kept};
}

// What a cache of these groups computes is what the plan says, for every preset that it can hold.
TEST(CacheGroups, HaveThePagesOfThePlan) {
  std::size_t held = 0;
  for (const std::string_view name : model_preset_names()) {
    const ModelSpec model = *find_model_preset(name);
    for (const KeptTokens kept : {KeptTokens::full, KeptTokens::model}) {
      const Result<CacheGroups> groups = groups_of(model, bf16(kept));
      if (!groups) {
        EXPECT_EQ(groups.status().code, StatusCode::unsupported) << name;
        continue;
      }
      ++held;
      const GroupLayout layout =
          GroupLayout::create(groups->groups(), model.shape.max_position).value();
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
      for (std::int32_t layer = 0; layer < model.shape.num_layers; ++layer) {
        EXPECT_TRUE(layout.has_layer(layer)) << name << ", layer " << layer;
      }
    }
  }
  EXPECT_GE(held, 50u);
}

TEST(CacheGroups, StagesShareTheLayers) {
  const ModelSpec model = *find_model_preset("Gemma-3-27B");
  std::set<std::int32_t> seen;
  for (std::int32_t stage = 0; stage < 3; ++stage) {
    KvMemoryOptions options = bf16(KeptTokens::model);
    options.pipeline_parallel = 3;
    options.stage = stage;
    const CacheGroups groups = groups_of(model, options).value();
    ASSERT_EQ(groups.groups().size(), 2u);
    EXPECT_EQ(groups.groups()[0].layers.size(), stage == 1 ? 4u : 3u);
    for (const LayerGroup& group : groups.groups()) {
      for (const GroupLayer& layer : group.layers) EXPECT_TRUE(seen.insert(layer.layer).second);
    }
  }
  EXPECT_EQ(seen.size(), 62u);
}

TEST(CacheGroups, LayersThatKeepDataOfTwoKinds) {
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
  const CacheGroups groups = groups_of(model, bf16(KeptTokens::full)).value();
  ASSERT_EQ(groups.groups().size(), 2u);
  EXPECT_EQ(groups.groups()[1].layers[0].layer, 3);
  EXPECT_EQ(groups.groups()[1].layers[2].layer, 5);
  EXPECT_EQ(groups.groups()[1].layers[2].reads_layer, 4);
}

TEST(CacheGroups, RefusesWhatACacheCannotHold) {
  const auto refused = [](std::string_view name, KvMemoryOptions options) {
    return groups_of(*find_model_preset(name), options).status();
  };
  EXPECT_EQ(refused("Qwen3-Next-80B-A3B", bf16(KeptTokens::model)).option, Option::kind);
  EXPECT_EQ(refused("DeepSeek-V3.2", bf16(KeptTokens::model)).resource, Resource::num_planes);
  KvMemoryOptions quantised = bf16(KeptTokens::model);
  quantised.format = *find_storage_format("q8_0");
  EXPECT_EQ(refused("Llama-3.1-8B", quantised).resource, Resource::dtype);
  quantised.format = *find_storage_format("int8");
  quantised.scale = ScaleKind::per_token_head;
  EXPECT_EQ(refused("Llama-3.1-8B", quantised).resource, Resource::scale);
  ModelSpec unknown = *find_model_preset("Llama-3.1-8B");
  unknown.groups.front().layers.clear();
  EXPECT_REFUSES(groups_of(unknown, bf16(KeptTokens::full)), invalid_argument, num_layers);
}

}  // namespace
}  // namespace kvarena::capacity
