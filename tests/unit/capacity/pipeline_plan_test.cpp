// Layers and parameters over the stages of a pipeline: by hand, and all stages against the one that
// a plan says is the tightest.

#include "capacity/parameters.hpp"
#include "capacity/planning.hpp"
#include "capacity/share.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// All of it in 8 bits.
ModelSpec deepseek_v3() {
  ModelSpec model = *find_model_preset("DeepSeek-V3");
  EXPECT_EQ(model.parameters, 671'026'419'200);
  model.ends_weights_format.clear();
  return model;
}

// A rank of 8: 36,651,008 of attention and norms a layer, 49,545,216 of a dense MLP, 1,416,626,432
// of a router, its experts and the shared one, 115,834,880 of the embedding and of the head each,
// 7,168 of the final norm; a byte each. Layers 0, 1 and 2 are dense.
TEST(PipelinePlan, TheLeadingLayersOfDeepSeekAreOnTheFirstStage) {
  const ModelSpec model = deepseek_v3();
  const auto weights_by_stage = [&](std::int32_t stages) {
    const PlanOptions options{.tensor_parallel = 8, .pipeline_parallel = stages};
    std::vector<std::int64_t> weights(static_cast<std::size_t>(stages));
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      weights[static_cast<std::size_t>(stage)] = weights_of_rank(model, options, stage).bytes;
    }
    return weights;
  };
  const std::int64_t two[] = {41'066'191'872, 43'714'165'248};  // 28 + 3 dense, 30
  EXPECT_TRUE(std::ranges::equal(weights_by_stage(2), two));
  const std::int64_t four[] = {19'267'030'272, 21'799'161'600, 21'799'161'600, 21'915'003'648};
  EXPECT_TRUE(std::ranges::equal(weights_by_stage(4), four));  // 13 + 3 dense, 15, 15, 15
  const std::int64_t eight[] = {7'640'810'752,  11'626'219'520, 11'626'219'520, 11'626'219'520,
                                11'626'219'520, 10'172'942'080, 10'172'942'080, 10'288'784'128};
  EXPECT_TRUE(std::ranges::equal(weights_by_stage(8), eight));  // 5 + 3 dense, 4 x 8, 3 x 7
}

TEST(PipelinePlan, TheStageWithMoreExpertsDecides) {
  const auto planned = [](std::int64_t memory_bytes, std::int32_t stages) {
    return plan(deepseek_v3(), {.memory_bytes = memory_bytes,
                                .context_tokens = 4096,
                                .tensor_parallel = 8,
                                .pipeline_parallel = stages})
        .value();
  };
  const MemoryPlan two = planned(80 * kGiB, 2);
  EXPECT_EQ(two.stage, 1);
  EXPECT_EQ(two.weights_bytes, 43'714'165'248);
  EXPECT_EQ(planned(32 * kGiB, 4).stage, 3) << "15 layers and the head";
  EXPECT_EQ(planned(20 * kGiB, 8).stage, 1) << "8 layers with experts";
}

TEST(PipelinePlan, DenseLayersAmongSparseOnesAreSpread) {
  ModelSpec model = *find_model_preset("Qwen3-235B-A22B");  // 94 layers
  model.shape.moe.first_dense_layers = 47;
  model.shape.moe.is_interleaved = true;
  model.shape.ffn = 12'288;
  count_parameters(model);
  for (const ParameterPart& part : model.parts) {
    if (part.num_layers != 47) continue;
    EXPECT_EQ(parts_of_stage(part, 94, 4, 0), 12) << part.name;
    EXPECT_EQ(parts_of_stage(part, 94, 4, 3), 11) << part.name;
  }
}

TEST(PipelinePlan, EveryLayerIsOnOneStage) {
  std::vector<ModelSpec> models = {deepseek_v3()};
  for (const std::string_view name : model_preset_names()) {
    models.push_back(*find_model_preset(name));
  }
  for (const ModelSpec& model : models) {
    const std::int32_t layers = model.shape.num_layers;
    for (const std::int32_t stages : {1, 2, 3, 4, 7, layers}) {
      std::vector<std::int64_t> mlps(static_cast<std::size_t>(stages));
      for (const ParameterPart& part : model.parts) {
        if (part.place != PartPlace::layers) continue;
        std::int64_t all = 0;
        for (std::int32_t stage = 0; stage < stages; ++stage) {
          const std::int64_t count = parts_of_stage(part, layers, stages, stage);
          all += count;
          const bool is_mlp = part.name == "gated MLP" || part.name == "experts";
          if (is_mlp) mlps[static_cast<std::size_t>(stage)] += count;
        }
        EXPECT_EQ(all, part.num_layers) << model.name << ", " << part.name;
      }
      for (std::int32_t stage = 0; stage < stages && mlps[0] > 0; ++stage) {
        if (model.parts.size() < 3) break;           // a total: dense layers are not told apart
        if (model.shape.mamba.num_heads > 0) break;  // not every layer has an MLP
        EXPECT_EQ(mlps[static_cast<std::size_t>(stage)], layers_of_stage(layers, stages, stage))
            << model.name << ", stage " << stage << " of " << stages;
      }
    }
  }
}

TEST(PipelinePlan, NoStageHasLessRoomThanThePlannedOne) {
  std::vector<ModelSpec> models = {deepseek_v3()};
  for (const char* name : {"Llama-3.1-8B", "Gemma-3-27B", "DeepSeek-V2-Lite", "Qwen3.5-27B"}) {
    models.push_back(*find_model_preset(name));
  }
  for (const ModelSpec& model : models) {
    for (const std::int32_t stages : {2, 3, 5, 8}) {
      for (const std::int64_t memory_gib : {12, 24, 80}) {
        const PlanOptions options{.memory_bytes = memory_gib * kGiB,
                                  .kept = KeptTokens::model,
                                  .context_tokens = 4096,
                                  .tensor_parallel = 8,
                                  .pipeline_parallel = stages};
        const std::int32_t tightest = plan(model, options).value().stage;
        const StageMemory planned = memory_of_stage(model, options, 4096, tightest).value();
        for (std::int32_t stage = 0; stage < stages; ++stage) {
          const StageMemory other = memory_of_stage(model, options, 4096, stage).value();
          EXPECT_FALSE(has_less_room(other, planned, 4096))
              << model.name << " in " << memory_gib << " GiB: stage " << stage << " of " << stages
              << ", planned " << tightest;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvarena::capacity
