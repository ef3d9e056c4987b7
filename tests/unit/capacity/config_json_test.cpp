// Configurations of the built-in models, and everything that is wrong in one.

#include "capacity/files/config_json.hpp"

#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "kvarena/capacity/storage_format.hpp"
#include "support/status_matchers.hpp"
#include "support/text_matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace kvarena::capacity {
namespace {

using Json = nlohmann::json;

struct NamedConfig {
  std::string_view preset;
  std::string_view text;
  std::int64_t parameters_about = 0;
};

constexpr NamedConfig kConfigs[] = {
#include "capacity/model_presets.def"
};

std::string_view config_of(std::string_view preset) {
  return std::ranges::find(kConfigs, preset, &NamedConfig::preset)->text;
}

ModelSpec read(std::string_view text) {
  ModelSpec model;
  ReadFailure failure;
  EXPECT_OK(model_from_config_text(text, "config.json", model, failure)) << to_string(failure);
  return model;
}

/// The message; "" when it is read.
std::string failure_of(std::string_view text) {
  ModelSpec model;
  ReadFailure failure;
  const Status status = model_from_config_text(text, "config.json", model, failure);
  if (status) return "";
  EXPECT_EQ(status, status_of(failure));
  EXPECT_EQ(status.code, StatusCode::parse_error);
  return to_string(failure);
}

/// A configuration that is read, with one key changed, or removed with nullopt.
std::string with(std::string_view key, const Json& value, std::string_view preset = "Qwen3-8B") {
  Json config = Json::parse(config_of(preset));
  config[std::string(key)] = value;
  return config.dump();
}
std::string without(std::string_view key, std::string_view preset = "Qwen3-8B") {
  Json config = Json::parse(config_of(preset));
  EXPECT_EQ(config.erase(std::string(key)), 1U);
  return config.dump();
}

// Totals that others have published: weights counted by the model's own library or by an engine.
TEST(ConfigJson, CountsParametersOfMixtures) {
  const auto parameters = [](std::string_view preset) {
    return read(config_of(preset)).parameters.value_or(0);
  };
  EXPECT_EQ(parameters("DeepSeek-V2-Lite"), 15'706'484'224);
  EXPECT_EQ(parameters("DeepSeek-V3"), 671'026'419'200);
  EXPECT_EQ(parameters("gpt-oss-20b"), 20'914'757'184);
  EXPECT_EQ(parameters("gpt-oss-120b"), 116'829'156'672);
}

TEST(ConfigJson, QuantisedWeightsAreAnEstimate) {
  const PlanOptions options{.memory_bytes = std::int64_t{2000} << 30, .context_tokens = 4096};
  const auto planned = [&](std::string_view text) { return plan(read(text), options).value(); };
  EXPECT_FALSE(planned(config_of("DeepSeek-V3")).weights_exact);
  EXPECT_EQ(planned(config_of("DeepSeek-V3")).weights_bytes,
            671'026'419'200 + 2 * std::int64_t{129'280} * 7168 + 7168)
      << "embedding, head and the last norm in 16 bits";
  const Json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}};
  EXPECT_FALSE(planned(with("quantization_config", gptq, "Llama-3.1-8B")).weights_exact);
  const Json unknown = {{"quant_method", "new"}};
  EXPECT_FALSE(planned(with("quantization_config", unknown, "Llama-3.1-8B")).weights_exact);
  EXPECT_TRUE(planned(config_of("Llama-3.1-8B")).weights_exact);
  EXPECT_TRUE(planned(config_of("gpt-oss-20b")).weights_exact) << "blocks with their scales";
  EXPECT_EQ(planned(config_of("gpt-oss-20b")).weights_bytes, 13'761'264'768)
      << "total_size of its index";
}

TEST(ConfigJson, EveryMissingNumberIsNamed) {
  EXPECT_EQ(failure_of(without("num_hidden_layers")),
            "config.json: $: found no num_hidden_layers; expected num_hidden_layers or n_layer or "
            "n_layers or num_layers, a whole number of 1 to 4096");
  for (const std::string_view key : {"hidden_size", "num_attention_heads"}) {
    EXPECT_HAS(failure_of(without(key)), "$: found no " + std::string(key));
  }
  EXPECT_HAS(failure_of("{}"), "found no num_hidden_layers");
  EXPECT_HAS(failure_of(without("qk_rope_head_dim", "DeepSeek-V3")), "no qk_rope_head_dim");
  std::string hybrid(config_of("Nemotron-3-Nano-30B-A3B"));
  hybrid.replace(hybrid.find("mamba_head_dim"), 5, "other");
  EXPECT_HAS(failure_of(hybrid), "$: found no mamba_head_dim");
  Json nested = Json::parse(config_of("Qwen3.5-27B"));
  nested["text_config"].erase("linear_key_head_dim");
  EXPECT_HAS(failure_of(nested.dump()), "$.text_config: found no linear_key_head_dim");
}

TEST(ConfigJson, EveryWrongNumberIsShownWithItsPath) {
  const auto wrong = [](const Json& value) { return failure_of(with("num_hidden_layers", value)); };
  const std::string expected = "; expected a whole number of 1 to 4096";
  EXPECT_EQ(wrong("36"), "config.json: $.num_hidden_layers: found the string \"36\"" + expected);
  EXPECT_EQ(wrong(0), "config.json: $.num_hidden_layers: found the number 0" + expected);
  EXPECT_EQ(wrong(-36), "config.json: $.num_hidden_layers: found the number -36" + expected);
  EXPECT_EQ(wrong(36.5), "config.json: $.num_hidden_layers: found the number 36.5" + expected);
  EXPECT_EQ(wrong(4097), "config.json: $.num_hidden_layers: found the number 4097" + expected);
  EXPECT_EQ(wrong(UINT64_MAX),
            "config.json: $.num_hidden_layers: found the number 18446744073709551615" + expected);
  EXPECT_EQ(wrong(1e300), "config.json: $.num_hidden_layers: found the number 1e+300" + expected);
  EXPECT_EQ(wrong(true), "config.json: $.num_hidden_layers: found true" + expected);
  EXPECT_EQ(wrong(Json::array({36})),
            "config.json: $.num_hidden_layers: found an array of 1" + expected);
  EXPECT_EQ(wrong(Json::object()), "config.json: $.num_hidden_layers: found an object" + expected);
  EXPECT_EQ(read(with("num_hidden_layers", 36.0)).shape.num_layers, 36);
  Json nested = Json::parse(config_of("Qwen3.5-27B"));
  nested["text_config"]["num_key_value_heads"] = -4;
  EXPECT_HAS(failure_of(nested.dump()), "$.text_config.num_key_value_heads: found the number");
}

TEST(ConfigJson, EveryKeyOfAKnownModelIsChecked) {
  int checked = 0;
  for (const NamedConfig& config : kConfigs) {
    const Json whole = Json::parse(config.text, nullptr, false);
    if (whole.is_discarded()) continue;  // Infinity
    const bool nested = whole.contains("text_config");
    const Json& inner = nested ? whole.at("text_config") : whole;
    for (const auto& [key, value] : inner.items()) {
      if (!value.is_number() && !value.is_string()) continue;
      Json changed = whole;
      (nested ? changed["text_config"] : changed)[key] = Json::object();
      const std::string failure = failure_of(changed.dump());
      if (failure.empty()) continue;  // not a key that decides memory
      ++checked;
      EXPECT_HAS(failure, "." + key + ": found an object; expected")
          << config.preset << " " << failure;
    }
  }
  EXPECT_GT(checked, 300);
}

TEST(ConfigJson, WhatDoesNotGoTogetherIsRefused) {
  const std::string_view oss = "gpt-oss-20b";
  EXPECT_HAS(failure_of(with("layer_types", Json::array({"full_attention"}), oss)),
             "$.layer_types: found an array of 1; expected one for each of 24 layers");
  EXPECT_HAS(failure_of(with("layer_types", Json(std::vector<std::string>(24, "magic")), oss)),
             "$.layer_types[0]: found the string \"magic\"");
  EXPECT_HAS(failure_of(with("layer_types", Json::array({1}), oss)),
             "$.layer_types[0]: found the number 1; expected a string");
  const Json windows(std::vector<std::string>(32, "sliding_attention"));
  EXPECT_HAS(failure_of(with("layer_types", windows, "Llama-3.1-8B")), "no sliding_window");
  Json odd = Json::parse(config_of("Llama-3.1-8B"));
  odd["num_attention_heads"] = 33;
  EXPECT_HAS(failure_of(odd.dump()), "no head_dim, and a hidden size of 4096 for 33 heads");
  const std::string other = failure_of(with("linear_attn_config", Json::object()));
  EXPECT_HAS(other, "$.linear_attn_config");
  EXPECT_HAS(other, "; name a GGUF file of the model");
  EXPECT_HAS(failure_of(with("torch_dtype", "float13")), "$.torch_dtype: found the string");
  odd["num_attention_heads"] = 8;
  odd["hidden_size"] = 1 << 24;
  EXPECT_HAS(failure_of(odd.dump()), "2097152");
}

TEST(ConfigJson, HostileTextIsRefused) {
  EXPECT_HAS(failure_of("[]"), "found no object");
  EXPECT_HAS(failure_of(R"({"num_hidden_layers": 1, "num_hidden_layers": 2})"), "again");
  EXPECT_HAS(failure_of(std::string(100'000, '[')), "levels of nesting");
  EXPECT_HAS(failure_of(std::string(std::size_t{5} << 20, ' ')), "bytes of JSON");
  EXPECT_HAS(failure_of(R"({"text_config": [1]})"), "$.text_config: found an array of 1");
  EXPECT_HAS(failure_of(R"({"model_type": 7})"), "$.model_type: found the number 7");
  std::string many = R"({"num_hidden_layers": 4096, "layer_types": [)";
  for (int i = 0; i < 100'000; ++i) many += "\"mlp\",";
  many += R"("mlp"], "hidden_size": 64, "num_attention_heads": 1})";
  EXPECT_HAS(failure_of(many), "one for each of 4096 layers");
}

TEST(ConfigJson, InfinityAndNanArePythons) {
  EXPECT_EQ(read(R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64,
                    "num_attention_heads": 1, "a": [Infinity, -Infinity, NaN, "\"Infinity"],
                    "head_dim": NaN})")
                .shape.num_layers,
            1);
  EXPECT_NE(failure_of(R"({"num_hidden_layers": Infinity})"), "");
  EXPECT_NE(failure_of(R"({"num_hidden_layers": Infinit})"), "");
  EXPECT_NE(failure_of(R"({"num_hidden_layers": NaN})"), "");
  EXPECT_NE(failure_of(R"({"num_hidden_layers": Nan})"), "");
}

TEST(ConfigJson, EveryPrefixIsRefused) {
  for (const std::string_view preset : {"Gemma-3-27B", "gpt-oss-20b", "Nemotron-3-Nano-30B-A3B"}) {
    const std::string_view text = config_of(preset);
    for (std::size_t size = 0; size < text.size(); ++size) {
      EXPECT_TRUE(failure_of(text.substr(0, size)).starts_with("config.json: line ")) << size;
    }
  }
}

}  // namespace
}  // namespace kvarena::capacity
