#pragma once

/// @file
/// Models and options for properties of plans, made by rapidcheck.

#include "capacity/parameters.hpp"
#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace kvarena::capacity {

using Amount = std::int64_t;

/// Layers of any kind.
inline CacheGroup any_group() {
  CacheGroup group{
      .kind = *rc::gen::element(CacheKind::full, CacheKind::window, CacheKind::chunked,
                                CacheKind::latent, CacheKind::recurrent, CacheKind::cross),
      .num_layers = *rc::gen::inRange(1, 64)};
  group.limit_tokens = *rc::gen::element<Amount>(1, 7, 128, 1000, 4096, 8192);
  if (group.kind == CacheKind::chunked) {  // of whole blocks, whatever the options say
    group.limit_tokens = *rc::gen::element<Amount>(768, 1536, 7680);
  }
  if (group.kind == CacheKind::latent) {
    group.latent_dim = *rc::gen::element(64, 576);
    group.latent_value_dim = 64;
    group.index_dim = *rc::gen::element(0, 0, 128);
  } else if (group.kind == CacheKind::recurrent) {
    group.state_elements = *rc::gen::inRange<Amount>(1, 1 << 20);
    group.conv_elements = *rc::gen::inRange<Amount>(0, 1 << 16);
  } else {
    group.num_kv_heads = *rc::gen::inRange(1, 33);
    group.head_dim_k = *rc::gen::element(8, 64, 96, 128, 256);
    group.head_dim_v = *rc::gen::element(8, 64, 128);
  }
  return group;
}

/// One of the presets, or a decoder of any kind of layers.
inline ModelSpec any_model() {
  const auto names = model_preset_names();
  if (*rc::gen::inRange(0, 2) == 0) {
    ModelSpec preset = find_model_preset(*rc::gen::elementOf(names)).value();
    if (preset.parts.empty()) preset.parameters = 1'000'000'000;
    return preset;
  }
  ModelSpec model;
  model.architecture = "llama";
  model.shape = {.hidden = 64 * *rc::gen::inRange(1, 128),
                 .num_q_heads = *rc::gen::inRange(1, 65),
                 .num_kv_heads = *rc::gen::inRange(1, 17),
                 .head_dim = *rc::gen::element(64, 96, 128),
                 .ffn = *rc::gen::inRange(64, 30'000),
                 .vocab = *rc::gen::inRange<Amount>(100, 260'000),
                 .max_position = *rc::gen::element<Amount>(0, 1, 1000, 4096, 131'072, 10'000'000),
                 .tied_embeddings = *rc::gen::arbitrary<bool>(),
                 .moe = {},
                 .mla = {}};
  const int groups = *rc::gen::inRange(1, 4);
  for (int i = 0; i < groups; ++i) {
    model.groups.push_back(any_group());
    model.shape.num_layers += model.groups.back().num_layers;
  }
  count_parameters(model);
  return model;
}

/// A format that K and V, and weights, may have.
inline StorageFormat any_format() {
  return *find_storage_format(
      *rc::gen::element<std::string>("f32", "bf16", "fp8_e4m3", "int8", "q8_0", "q4_0"));
}

/// Options that plan() answers.
inline PlanOptions any_options(const ModelSpec& model) {
  PlanOptions options{.memory_bytes = *rc::gen::inRange<Amount>(1, 200) << 30,
                      .utilization_permille = *rc::gen::inRange(500, 1001),
                      .kept = *rc::gen::element(KeptTokens::full, KeptTokens::model),
                      .block_size_tokens = *rc::gen::element(1, 8, 16, 24, 64, 256),
                      .context_tokens = *rc::gen::inRange<Amount>(1, 50'000),
                      .batch = *rc::gen::inRange<Amount>(1, 300),
                      .tensor_parallel = *rc::gen::elementOf(tensor_parallel_choices(model)),
                      .pipeline_parallel = *rc::gen::element(1, 1, 2, 5)};
  if (*rc::gen::arbitrary<bool>()) options.kv = any_format();
  if (*rc::gen::arbitrary<bool>()) options.weights = any_format();
  if (*rc::gen::arbitrary<bool>()) options.kv_scale = ScaleKind::per_token_head;
  if (*rc::gen::arbitrary<bool>()) {
    options.target =
        CacheTarget{.kind = DeviceKind::cuda, .num_sms = *rc::gen::element(58, 132, 148)};
  }
  const Amount longest = model.shape.max_position;
  if (longest > 0) options.context_tokens = std::min(options.context_tokens, longest);
  options.pipeline_parallel = std::min(options.pipeline_parallel, model.shape.num_layers);
  return options;
}

}  // namespace kvarena::capacity
