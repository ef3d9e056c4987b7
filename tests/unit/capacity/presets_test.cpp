// Presets of models and GPUs: parameter counts and figures against the published facts, and the
// tables against themselves.

#include "kvarena/base/shapes.hpp"
#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>

namespace kvarena::capacity {
namespace {

nlohmann::json published_models() {
  std::ifstream file(KVARENA_TEST_DATA "/model_facts.json");
  return nlohmann::json::parse(file).at("models");
}

TEST(ModelPresets, EveryLayerHasItsPlace) {
  for (const std::string_view name : model_preset_names()) {
    const ModelSpec model = *find_model_preset(name);
    std::set<std::int32_t> places;
    for (const CacheGroup& group : model.groups) {
      std::int32_t sharing = 0;
      for (const CacheLayer& layer : group.layers) {
        EXPECT_TRUE(places.insert(layer.layer).second) << name << ": two places of " << layer.layer;
        EXPECT_TRUE(layer.layer >= 0 && layer.layer < model.shape.num_layers) << name;
        sharing += layer.reads_layer >= 0 ? 1 : 0;
      }
      EXPECT_EQ(std::ssize(group.layers), group.num_layers + group.num_sharing_layers) << name;
      EXPECT_EQ(sharing, group.num_sharing_layers) << name;
    }
  }
  const auto full = find_model_preset("Gemma-3-27B")->groups.front();
  ASSERT_EQ(full.kind, CacheKind::full);
  EXPECT_EQ(full.layers[0].layer, 5);  // five of six layers have windows
  EXPECT_EQ(full.layers[9].layer, 59);
}

TEST(ModelPresets, AreSortedValidAndFoundByName) {
  const auto names = model_preset_names();
  EXPECT_EQ(names.size(), 36U);
  const auto lower = [](std::string_view name) {
    std::string text(name);
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
  };
  EXPECT_TRUE(std::ranges::is_sorted(names, {}, lower));
  for (const std::string_view name : names) {
    const auto model = find_model_preset(lower(name));
    ASSERT_TRUE(model) << name;
    EXPECT_EQ(model->name, name);
    EXPECT_OK(validate(*model));
    EXPECT_NE(find_storage_format(model->weights_format), nullptr) << name;
    EXPECT_FALSE(model->parameters_source.empty()) << name;
    EXPECT_EQ(model->source, "preset");
  }
  EXPECT_FALSE(find_model_preset("no such model"));
  EXPECT_FALSE(find_model_preset(""));
}

TEST(ModelPresets, KnowTheseModelsWithoutAnyFile) {
  EXPECT_EQ(find_model_preset("Qwen2.5-0.5B")->parameters, 494'032'768);
  EXPECT_EQ(find_model_preset("Phi-3-mini-4k-instruct")->parameters, 3'821'079'552);
  EXPECT_EQ(find_model_preset("Llama-3.1-8B")->parameters, 8'030'261'248);
  EXPECT_EQ(find_model_preset("Qwen3-235B-A22B")->parameters, 235'093'634'560);
  // The model card says 31.6 billion.
  const std::int64_t mamba =
      2688 * (2 * 4096 + 2 * 8 * 128 + 64) + 6144 * 5 + 3 * 64 + 4096 + 4096 * 2688;
  const std::int64_t attention = 2 * 2688 * 4096 + 2 * 2688 * 256;
  const std::int64_t experts = 128 * (2 * 2688 * 1856 + 2688 + 1) + 2 * 2688 * 3712;
  EXPECT_EQ(find_model_preset("Nemotron-3-Nano-30B-A3B")->parameters,
            2 * 131'072 * 2688 + 23 * mamba + 6 * attention + 23 * experts + 53 * 2688);
  EXPECT_EQ(find_model_preset("Nemotron-3-Nano-30B-A3B")->parameters, 31'577'940'288);
  EXPECT_EQ(2 * kv_elements_per_token(*find_model_preset("Phi-3-mini-4k-instruct")), 393'216);
  EXPECT_EQ(2 * kv_elements_per_token(*find_model_preset("DeepSeek-V3")), 70'272);
  EXPECT_EQ(2 * kv_elements_per_token(*find_model_preset("Nemotron-3-Nano-30B-A3B")), 6'144);
}

TEST(ModelPresets, AgreeWithThePublishedFacts) {
  int counted = 0;
  for (const nlohmann::json& facts : published_models()) {
    const auto name = facts.at("name").get<std::string>();
    const auto model = find_model_preset(name);
    ASSERT_TRUE(model) << name;
    EXPECT_EQ(2 * kv_elements_per_token(*model), facts.at("kv_bytes_per_token_16bit")) << name;
    EXPECT_EQ(model->shape.num_layers, facts.at("layers")) << name;
    EXPECT_EQ(model->shape.max_position, facts.at("max_position")) << name;
    EXPECT_EQ(model->shape.vocab, facts.at("vocab")) << name;
    EXPECT_EQ(model->shape.tied_embeddings, facts.at("tie_embeddings")) << name;
    std::int64_t kv_layers = 0;
    for (const CacheGroup& group : model->groups) {
      if (group.kind != CacheKind::recurrent) kv_layers += group.num_layers;
    }
    EXPECT_EQ(kv_layers, facts.at("kv_layers")) << name;
    if (facts.contains("params_from_shapes")) {
      ++counted;
      EXPECT_EQ(model->parameters, facts.at("params_from_shapes").get<std::int64_t>()) << name;
    } else {
      if (facts.at("params_b").is_null()) continue;
      const auto published = facts.at("params_b").get<double>() * 1e9;
      const auto own = model->parameters.value_or(model->parameters_about.value_or(0));
      EXPECT_NEAR(static_cast<double>(own) / published, 1.0, 0.002) << name;
    }
  }
  EXPECT_EQ(counted, 22);
}

/// Parameters that a token is multiplied by, all experts but those that it visits left out.
double active_parameters(const ModelSpec& model) {
  double sum = 0.0;
  for (const ParameterPart& part : model.parts) {
    const double share = part.num_experts > 0 ? static_cast<double>(part.experts_per_token) /
                                                    static_cast<double>(part.num_experts)
                                              : 1.0;
    sum += share * static_cast<double>(part.total());
  }
  return sum;
}

TEST(ModelPresets, MixturesHaveExperts) {
  int mixtures = 0;
  for (const nlohmann::json& facts : published_models()) {
    const auto name = facts.at("name").get<std::string>();
    const ModelSpec model = find_model_preset(name).value();
    EXPECT_EQ(model.shape.moe.num_experts > 0, facts.at("experts") > 0) << name;
    if (model.shape.moe.num_experts == 0 || model.parts.empty()) continue;
    ++mixtures;
    EXPECT_EQ(std::ranges::count_if(model.parts, [](const auto& p) { return p.num_experts > 0; }),
              1)
        << name;
    const double published = facts.at("active_params_b").get<double>() * 1e9;
    EXPECT_NEAR(active_parameters(model) / published, 1.0, 0.3) << name;
  }
  EXPECT_GE(mixtures, 13);
}

TEST(ModelPresets, AgreeWithTheNamedLayouts) {
  for (const ModelShape& shape : model_shapes()) {
    const auto model = find_model_preset(shape.name);
    ASSERT_TRUE(model) << shape.name;
    EXPECT_EQ(model->shape.num_layers, shape.num_layers) << shape.name;
    EXPECT_EQ(model->shape.num_q_heads, shape.num_q_heads) << shape.name;
    EXPECT_EQ(model->shape.max_position, shape.max_position) << shape.name;
    EXPECT_EQ(kv_elements_per_token(*model),
              std::int64_t{2} * shape.num_layers * shape.num_kv_heads * shape.head_dim)
        << shape.name;
    for (const CacheGroup& group : model->groups) {
      EXPECT_EQ(group.num_kv_heads, shape.num_kv_heads) << shape.name;
      EXPECT_EQ(group.head_dim_k, shape.head_dim) << shape.name;
      EXPECT_EQ(group.head_dim_v, shape.head_dim) << shape.name;
    }
    EXPECT_EQ(find_storage_format(model->kv_format), find_storage_format(name_of(shape.dtype)))
        << shape.name;
  }
}

TEST(StorageFormats, HaveTheirBlocks) {
  const auto bytes = [](std::string_view name, std::int64_t count) {
    return stored_bytes(*find_storage_format(name), count);
  };
  EXPECT_EQ(bytes("BF16", 3), 6);
  EXPECT_EQ(bytes("bfloat16", 3), 6);
  EXPECT_EQ(bytes("q8_0", 64), 68);
  EXPECT_EQ(bytes("q8_0", 33), 68);
  EXPECT_EQ(bytes("q4_0", 32), 18);
  EXPECT_EQ(bytes("q4_0", 0), 0);
  EXPECT_EQ(bytes("f32", std::int64_t{1} << 62), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(find_storage_format("q4"), nullptr);
  EXPECT_EQ(find_storage_format(""), nullptr);
}

TEST(GpuPresets, AreFoundInAnyCase) {
  const GpuSpec* gpu = find_gpu("rtx-4090");
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->name, "RTX-4090");
  EXPECT_EQ(gpu, find_gpu("RTX-4090"));
  EXPECT_EQ(find_gpu("mi300x"), find_gpu("MI300X"));
  EXPECT_EQ(find_gpu("RTX-409"), nullptr);
  EXPECT_EQ(find_gpu("RTX-40900"), nullptr);
  EXPECT_EQ(find_gpu(""), nullptr);
}

TEST(GpuPresets, HaveUnitsAndSources) {
  std::set<std::string> names;
  for (const GpuSpec& gpu : gpu_presets()) {
    SCOPED_TRACE(gpu.name);
    EXPECT_TRUE(names.insert(gpu.name).second) << "a name twice";
    EXPECT_GT(gpu.memory_bytes, std::int64_t{20} << 30);
    EXPECT_LT(gpu.memory_bytes, std::int64_t{200} << 30);
    EXPECT_LT(gpu.cuda_memory_bytes.value_or(0), gpu.memory_bytes);
    for (const std::string& source : {gpu.memory_source, gpu.bandwidth_source, gpu.flops_source}) {
      const bool is_public = source.find("github.com/") != source.npos ||
                             source.find("data sheet: ") != source.npos ||
                             source.find(" Architecture") != source.npos;
      EXPECT_TRUE(is_public) << source;
      EXPECT_EQ(source.find("recalled"), source.npos);
    }
    // Of every GPU since 2020: a peak in the wrong unit, or a sparse one of the fastest, lies
    // outside.
    const std::int64_t flops_per_byte = gpu.bf16_flops_per_second / gpu.bandwidth_bytes_per_second;
    EXPECT_GT(flops_per_byte, 70);
    EXPECT_LT(flops_per_byte, 450);
  }
}

TEST(GpuPresets, AreThePublishedFigures) {
  std::ifstream file(KVARENA_TEST_DATA "/gpu_facts.json");
  const auto facts = nlohmann::json::parse(file).at("gpus");
  const auto gpus = gpu_presets();
  ASSERT_EQ(gpus.size(), facts.size());
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const GpuSpec& gpu = gpus[i];
    const auto& fact = facts.at(i);
    SCOPED_TRACE(gpu.name);
    EXPECT_EQ(gpu.name, fact.at("name"));
    EXPECT_EQ(gpu.vendor, fact.at("vendor"));
    EXPECT_EQ(gpu.memory_bytes, fact.at("memory_bytes_usable"));
    const std::int64_t of_cuda = gpu.name == "H200-SXM"
                                     ? 150'109'880'320  // of this project's runs: docs/reports
                                     : fact.value("memory_bytes_cuda", std::int64_t{0});
    EXPECT_EQ(gpu.cuda_memory_bytes.value_or(0), of_cuda);
    EXPECT_EQ(gpu.bandwidth_bytes_per_second,
              fact.at("bandwidth_gbs").get<std::int64_t>() * 1'000'000'000);
  }
}

}  // namespace
}  // namespace kvarena::capacity
