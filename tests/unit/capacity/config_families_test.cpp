// What families of models say in their own ways, beside those of the presets.

#include "capacity/files/config_json.hpp"

#include "support/status_matchers.hpp"
#include "support/text_matchers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace kvarena::capacity {
namespace {

/// A small decoder with `more` keys.
std::string config(std::string_view model_type, std::string_view more) {
  return fmt::format(
      R"({{"model_type": "{}", "num_hidden_layers": 12, "hidden_size": 512,
          "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1024,
          "vocab_size": 1000,
          "max_position_embeddings": 8192, "torch_dtype": "bfloat16"{}{}}})",
      model_type, more.empty() ? "" : ", ", more);
}

ModelSpec read(std::string_view text) {
  ModelSpec model;
  ReadFailure failure;
  EXPECT_OK(model_from_config_text(text, "config.json", model, failure)) << to_string(failure);
  return model;
}

std::string failure_of(std::string_view text) {
  ModelSpec model;
  ReadFailure failure;
  return model_from_config_text(text, "config.json", model, failure) ? "" : to_string(failure);
}

/// "full attention 10, sliding window 2 of 4096": kinds with their layers and limits.
std::string layers_of(const ModelSpec& model) {
  std::string text;
  for (const CacheGroup& group : model.groups) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}", name_of(group.kind), group.num_layers);
    if (group.num_sharing_layers > 0) text += fmt::format("+{}", group.num_sharing_layers);
    if (group.limit_tokens > 0) text += fmt::format(" of {}", group.limit_tokens);
  }
  return text;
}
std::string layers_of(std::string_view model_type, std::string_view more) {
  return layers_of(read(config(model_type, more)));
}

bool has_note(const ModelSpec& model, std::string_view part) {
  return std::ranges::any_of(model.notes,
                             [&](const std::string& note) { return note.find(part) != note.npos; });
}

TEST(ConfigFamilies, WindowsCountWhereTheFamilyUsesThem) {
  const std::string_view window = R"("sliding_window": 1024)";
  EXPECT_EQ(layers_of("llama", window), "full attention 12") << "llama has no window";
  EXPECT_EQ(layers_of("mistral", window), "sliding window 12 of 1024");
  EXPECT_EQ(layers_of("phi3", window), "sliding window 12 of 1024");
  EXPECT_EQ(layers_of("mistral", R"("sliding_window": 8192)"), "full attention 12")
      << "as long as the longest context";
  EXPECT_EQ(layers_of("mistral", R"("sliding_window": null)"), "full attention 12");
  EXPECT_EQ(layers_of("qwen2", window), "full attention 12") << "use_sliding_window is false";
  EXPECT_EQ(layers_of("qwen2", R"("sliding_window": 1024, "use_sliding_window": true,
                                  "max_window_layers": 9)"),
            "full attention 9, sliding window 3 of 1024");
  EXPECT_EQ(layers_of("qwen2", R"("sliding_window": 1024, "use_sliding_window": true)"),
            "full attention 12")
      << "28 layers without a window by default";
  EXPECT_EQ(layers_of("qwen3_moe", R"("sliding_window": 1024, "use_sliding_window": true)"),
            "sliding window 12 of 1024");
  EXPECT_EQ(layers_of("gemma2", window), "full attention 6, sliding window 6 of 1024");
  EXPECT_EQ(layers_of("gemma2", ""), "full attention 6, sliding window 6 of 4096");
  EXPECT_EQ(layers_of("gemma3_text", window), "full attention 2, sliding window 10 of 1024");
  EXPECT_EQ(layers_of("gemma3_text", R"("sliding_window": 512, "sliding_window_pattern": 4)"),
            "full attention 3, sliding window 9 of 512");
  EXPECT_EQ(layers_of("cohere2", window), "full attention 3, sliding window 9 of 1024");
  EXPECT_EQ(layers_of("gpt_oss", R"("sliding_window": 128)"),
            "full attention 6, sliding window 6 of 128");
}

TEST(ConfigFamilies, LayerTypesWin) {
  std::string types = R"("layer_types": ["full_attention")";
  for (int i = 1; i < 12; ++i) types += R"(, "sliding_attention")";
  types += "]";
  for (const std::string_view family : {"mistral", "gemma3_text", "gpt_oss", "llama", "new"}) {
    EXPECT_EQ(layers_of(family, types + R"(, "sliding_window": 256)"),
              "full attention 1, sliding window 11 of 256")
        << family;
  }
}

TEST(ConfigFamilies, ChunksOfLlama4) {
  EXPECT_EQ(layers_of("llama4_text", R"("attention_chunk_size": 512)"),
            "full attention 3, chunked attention 9 of 512");
  EXPECT_EQ(layers_of("llama4_text", R"("attention_chunk_size": null)"), "full attention 12");
  EXPECT_EQ(layers_of("llama4_text", R"("attention_chunk_size": 512,
                      "no_rope_layers": [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0])"),
            "full attention 6, chunked attention 6 of 512");
  EXPECT_NE(failure_of(config("llama4_text", R"("no_rope_layers": [1])")), "");
}

TEST(ConfigFamilies, LayersThatShareKeysAndValues) {
  EXPECT_EQ(layers_of("gemma3n_text", R"("num_kv_shared_layers": 5)"),
            "full attention 1+1, sliding window 6+4 of 512");
  EXPECT_NE(failure_of(config("gemma3n_text", R"("num_kv_shared_layers": 12)")), "");
  EXPECT_HAS(failure_of(config("gemma3n_text", R"("num_kv_shared_layers": 11)")),
             "$.num_kv_shared_layers: found the number 11")
      << "the only full layer before them shares with nobody";
}

TEST(ConfigFamilies, OldNames) {
  const ModelSpec gpt2 = read(R"({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768,
                                  "n_positions": 1024, "vocab_size": 50257})");
  EXPECT_EQ(kv_elements_per_token(gpt2), 12 * 2 * 768);
  EXPECT_EQ(gpt2.shape.max_position, 1024);
  EXPECT_TRUE(gpt2.shape.tied_embeddings);
  EXPECT_TRUE(has_note(gpt2, "bf16 is assumed"));
  const std::string_view falcon = R"({"model_type": "falcon", "num_hidden_layers": 32,
    "num_attention_heads": 71, "hidden_size": 4544, "vocab_size": 65024)";
  EXPECT_EQ(kv_elements_per_token(read(std::string(falcon) + "}")), 32 * 2 * 64);
  EXPECT_EQ(kv_elements_per_token(read(std::string(falcon) + R"(, "multi_query": false})")),
            32 * 2 * 4544);
  EXPECT_EQ(kv_elements_per_token(read(std::string(falcon) +
                                       R"(, "new_decoder_architecture": true,
                                          "num_kv_heads": 8})")),
            32 * 2 * 8 * 64);
  EXPECT_EQ(read(R"({"model_type": "mpt", "n_layers": 4, "n_heads": 8, "d_model": 512,
                     "max_seq_len": 2048, "attn_config": {"kv_n_heads": 2}})")
                .groups[0]
                .num_kv_heads,
            2);
  EXPECT_EQ(read(R"({"model_type": "chatglm", "num_layers": 28, "num_attention_heads": 32,
                     "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": true,
                     "multi_query_group_num": 2, "seq_length": 8192})")
                .groups[0]
                .num_kv_heads,
            2);
}

TEST(ConfigFamilies, EncodersAndDecoders) {
  const ModelSpec t5 = read(R"({"model_type": "t5", "num_layers": 24, "num_decoder_layers": 20,
    "num_heads": 32, "d_kv": 64, "d_model": 2048, "d_ff": 5120, "n_positions": 512,
    "is_encoder_decoder": true})");
  EXPECT_EQ(layers_of(t5), "full attention 20, cross attention 20 of 512");
  EXPECT_EQ(t5.groups[1].num_kv_heads, 32);
  EXPECT_EQ(t5.groups[1].head_dim_k, 64);
  const ModelSpec whisper = read(R"({"model_type": "whisper", "encoder_layers": 32,
    "decoder_layers": 4, "decoder_attention_heads": 20, "encoder_attention_heads": 20,
    "d_model": 1280, "max_source_positions": 1500, "max_target_positions": 448})");
  EXPECT_EQ(layers_of(whisper), "full attention 4, cross attention 4 of 1500");
  EXPECT_EQ(whisper.shape.max_position, 448);
  EXPECT_TRUE(has_note(read(R"({"model_type": "t5", "num_layers": 2, "num_heads": 2, "d_kv": 64,
                               "d_model": 128})"),
                       "512 tokens"));
}

TEST(ConfigFamilies, ImagesThatLayersRead) {
  const std::string text = R"({"model_type": "mllama", "text_config": {
    "model_type": "mllama_text_model", "num_hidden_layers": 40, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8)";
  const std::string layers = R"(, "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38])";
  const std::string vision =
      R"(, "vision_config": {"image_size": 560, "patch_size": 14, "max_num_tiles": 4})";
  EXPECT_EQ(layers_of(read(text + layers + "}" + vision + "}")),
            "full attention 32, cross attention 8 of 6404");
  EXPECT_HAS(failure_of(text + layers + "}}"), "vision_config");
  EXPECT_HAS(failure_of(text + "}" + vision + "}"), "no cross_attention_layers");
  EXPECT_HAS(failure_of(text + R"(, "cross_attention_layers": [40]})" + vision + "}"),
             "$.text_config.cross_attention_layers[0]: found the number 40");
}

TEST(ConfigFamilies, SparseIndexes) {
  const std::string mla = R"("kv_lora_rank": 64, "qk_rope_head_dim": 16, "index_head_dim": 32)";
  const ModelSpec all = read(config("glm_moe_dsa", mla));
  ASSERT_EQ(all.groups.size(), 1U);
  EXPECT_EQ(all.groups[0].index_dim, 32);
  std::string types = R"(, "index_topk_freq": 3, "indexer_types": ["full")";
  for (int i = 1; i < 12; ++i) types += i % 3 == 0 ? R"(, "full")" : R"(, "shared")";
  const ModelSpec some = read(config("glm_moe_dsa", mla + types + "]"));
  EXPECT_EQ(layers_of(some), "latent (MLA) 4, latent (MLA) 8");
  EXPECT_EQ(some.groups[0].index_dim, 32);
  EXPECT_EQ(some.groups[1].index_dim, 0);
  EXPECT_NE(failure_of(config("glm_moe_dsa", mla + R"(, "index_topk_freq": 3)")), "");
}

TEST(ConfigFamilies, Experts) {
  const MoeShape qwen = read(config("qwen2_moe", R"("num_experts": 60, "num_experts_per_tok": 4,
      "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632)"))
                            .shape.moe;
  EXPECT_EQ(qwen.num_shared, 1);
  EXPECT_EQ(qwen.shared_ffn, 5632);
  EXPECT_EQ(qwen.first_dense_layers, 0);
  const auto shape = [](std::string_view more) {
    return read(config("x", fmt::format(R"("num_experts": 4, "num_experts_per_tok": 2, {})", more)))
        .shape.moe;
  };
  const auto leading = [&](std::string_view more) {
    const MoeShape moe = shape(more);
    EXPECT_FALSE(moe.is_interleaved) << more;
    return moe.first_dense_layers;
  };
  const auto among = [&](std::string_view more) {
    const MoeShape moe = shape(more);
    EXPECT_TRUE(moe.is_interleaved) << more;
    return moe.first_dense_layers;
  };
  EXPECT_EQ(among(R"("decoder_sparse_step": 2)"), 6);
  EXPECT_EQ(among(R"("decoder_sparse_step": 1, "mlp_only_layers": [0, 5])"), 2);
  EXPECT_EQ(leading(R"("first_k_dense_replace": 3)"), 3);
  EXPECT_EQ(among(R"("interleave_moe_layer_step": 3)"), 8);
  EXPECT_EQ(among(R"("moe_layers": [1, 3, 5])"), 9);
  EXPECT_EQ(leading(R"("moe_layer_freq": [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])"), 2);
  EXPECT_EQ(among(R"("moe_layers": [1, 3, 5, 3])"), 9) << "a layer named twice is one";
  std::string types = R"("mlp_layer_types": ["dense")";
  for (int layer = 1; layer < 12; ++layer) types += R"(, "sparse")";
  EXPECT_EQ(leading(types + "]"), 1);
  EXPECT_NE(failure_of(config("x", R"("num_experts": 4, "num_experts_per_tok": 5)")), "");
}

TEST(ConfigFamilies, ExpertsByLayerFitTheLayers) {
  const auto refused = [](std::string_view more, std::string_view reason) {
    const std::string text = failure_of(config("x", fmt::format(R"("num_experts": 4, {})", more)));
    EXPECT_HAS(text, reason);
  };
  refused(R"("mlp_layer_types": ["dense", "sparse"])",
          "$.mlp_layer_types: found an array of 2; expected one for each of 12 layers");
  refused(R"("mlp_layer_types": [])", "expected one for each of 12 layers");
  refused(R"("moe_layer_freq": [0, 1])",
          "$.moe_layer_freq: found an array of 2; expected one for each of 12 layers");
  refused(R"("moe_layer_freq": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])", "each of 12 layers");
  for (const std::string_view key : {"mlp_only_layers", "moe_layers"}) {
    refused(fmt::format(R"("{}": [11, 12])", key),
            fmt::format("$.{}[1]: found the number 12; expected", key));
  }
}

// Qwen1.5-MoE-A2.7B: keras-hub and the total_size of its index (28,631,568,384 bytes of bf16).
// Command R7B has the shapes of Aya Expanse 8B. Gemma 7B: keras-hub.
TEST(ConfigFamilies, ParametersOfPublishedModels) {
  EXPECT_EQ(read(R"({"model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048,
      "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936,
      "intermediate_size": 5632, "moe_intermediate_size": 1408, "num_experts": 60,
      "num_experts_per_tok": 4, "shared_expert_intermediate_size": 5632})")
                .parameters,
            14'315'784'192);
  EXPECT_EQ(read(R"({"model_type": "cohere2", "num_hidden_layers": 32, "hidden_size": 4096,
      "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
      "vocab_size": 256000, "max_position_embeddings": 132096, "sliding_window": 4096})")
                .parameters,
            8'028'033'024);
  EXPECT_EQ(read(R"({"model_type": "gemma", "num_hidden_layers": 28, "hidden_size": 3072,
      "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
      "intermediate_size": 24576, "vocab_size": 256000})")
                .parameters,
            8'537'680'896);
}

TEST(ConfigFamilies, ParametersStayOpenWithTheReason) {
  EXPECT_EQ(read(config("brand_new", "")).parameters_source,
            "no formula for the architecture 'brand_new'");
  const ModelSpec biased = read(config("llama", R"("attention_bias": true)"));
  EXPECT_FALSE(biased.parameters);
  EXPECT_EQ(biased.parameters_source, "biases that the formula leaves out");
  const ModelSpec window = read(config("brand_new", R"("sliding_window": 512)"));
  EXPECT_EQ(layers_of(window), "sliding window 12 of 512");
  EXPECT_TRUE(has_note(window, "'brand_new' is not known here"));
}

// LLaVA-1.5-7B and Pixtral-12B, whose nested objects leave out what their classes have by default.
TEST(ConfigFamilies, WhatLlamaAndMistralLeaveOut) {
  const ModelSpec llava = read(R"({"model_type": "llava", "torch_dtype": "float16", "text_config":
      {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
      "vision_config": {"image_size": 336}})");
  EXPECT_EQ(layers_of(llava), "full attention 32");
  EXPECT_EQ(llava.parameters, 6'738'939'904) << "Llama-2-7B with 64 more tokens";
  EXPECT_EQ(kv_elements_per_token(llava), 32 * 2 * 4096);
  EXPECT_TRUE(has_note(llava, "no num_hidden_layers: 32, what is usual of 'llama'"));
  EXPECT_TRUE(has_note(llava, "no hidden_size: 4096"));
  const ModelSpec pixtral = read(R"({"model_type": "llava", "text_config": {"model_type": "mistral",
      "hidden_size": 5120, "head_dim": 128, "intermediate_size": 14336, "num_hidden_layers": 40,
      "max_position_embeddings": 1024000, "num_key_value_heads": 8, "vocab_size": 131072,
      "sliding_window": null}})");
  EXPECT_EQ(pixtral.shape.num_q_heads, 32);
  EXPECT_EQ(kv_elements_per_token(pixtral), 40 * 2 * 8 * 128);
  EXPECT_EQ(pixtral.parameters, 12'247'782'400) << "Mistral-Nemo";
  EXPECT_NE(failure_of(R"({"model_type": "new", "num_hidden_layers": 2})"), "");
}

TEST(ConfigFamilies, VisionModelsOfQwen2) {
  const std::string sizes = R"("num_hidden_layers": 28, "hidden_size": 3584,
      "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
      "vocab_size": 152064, "tie_word_embeddings": false)";
  for (const std::string_view family : {"qwen2_vl", "qwen2_5_vl"}) {
    EXPECT_EQ(read(fmt::format(R"({{"model_type": "{}", {}}})", family, sizes)).parameters,
              7'615'616'512);
    EXPECT_EQ(
        read(fmt::format(R"({{"text_config": {{"model_type": "{}_text", {}}}}})", family, sizes))
            .parameters,
        7'615'616'512);
  }
}

TEST(ConfigFamilies, UnknownOnesSayWhatTheyAreTakenFor) {
  EXPECT_TRUE(has_note(read(config("new", "")),
                       "'new' is not known here: 12 layers of full attention with 2 KV heads are"));
  EXPECT_TRUE(has_note(read(config("new", R"("sliding_window": 512)")),
                       "its sliding_window is taken for every layer, with 2 KV heads"));
  EXPECT_TRUE(has_note(read(config("new", R"("kv_lora_rank": 64, "qk_rope_head_dim": 16)")),
                       "12 layers of latent attention are taken"));
  EXPECT_FALSE(has_note(read(config("llama", "")), "not known"));
  // Step3
  EXPECT_EQ(read(R"({"model_type": "step3_text", "num_hidden_layers": 61, "hidden_size": 7168,
      "num_attention_heads": 64, "num_attention_groups": 1, "head_dim": 256})")
                .groups.at(0)
                .num_kv_heads,
            1);
}

// LongCat-Flash has two latent attentions in each of 28 layers.
TEST(ConfigFamilies, SeveralAttentionsInALayer) {
  const std::string latent = R"({"model_type": "longcat_flash", "hidden_size": 6144,
      "num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64, )";
  EXPECT_EQ(layers_of(read(latent + R"("num_layers": 28})")), "latent (MLA) 56");
  EXPECT_EQ(layers_of(read(latent + R"("num_layers": 28, "num_hidden_layers": 56})")),
            "latent (MLA) 56");
  EXPECT_NE(failure_of(latent + R"("num_layers": 4096})"), "");
}

// Hunyuan-Large: every second layer reads K and V of the one before.
TEST(ConfigFamilies, CrossLayerAttention) {
  EXPECT_EQ(layers_of("hunyuan", R"("use_cla": true, "cla_share_factor": 2)"),
            "full attention 6+6");
  EXPECT_EQ(layers_of("hunyuan", R"("use_cla": true, "cla_share_factor": 5)"),
            "full attention 3+9");
  EXPECT_EQ(layers_of("hunyuan", R"("use_cla": false, "cla_share_factor": 2)"),
            "full attention 12");
  EXPECT_HAS(failure_of(config("hunyuan", R"("use_cla": true)")), "no cla_share_factor");
}

TEST(ConfigFamilies, LocalLayersOfGptNeo) {
  const std::string neo = R"({"model_type": "gpt_neo", "num_layers": 4, "num_heads": 2,
      "hidden_size": 64, "max_position_embeddings": 2048, "window_size": 256,
      "attention_types": [[["global", "local"], 2]])";
  EXPECT_EQ(
      layers_of(read(neo + R"(, "attention_layers": ["global", "local", "global", "local"]})")),
      "full attention 2, sliding window 2 of 256");
  EXPECT_HAS(failure_of(neo + "}"), "expected attention_layers beside it");
}

// Gemma-2-9B is published in 32 bits, of which vLLM's --dtype auto makes 16.
TEST(ConfigFamilies, KeysAndValuesOfFloat32) {
  const ModelSpec gemma = read(R"({"model_type": "gemma2", "num_hidden_layers": 42,
      "hidden_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
      "intermediate_size": 14336, "vocab_size": 256000, "torch_dtype": "float32"})");
  EXPECT_EQ(gemma.weights_format, "f32");
  EXPECT_EQ(gemma.kv_format, "bf16");
  EXPECT_TRUE(has_note(gemma, "K and V are planned as bf16"));
}

TEST(ConfigFamilies, EmbeddingsAreTiedWhereEitherObjectSaysSo) {
  const auto tied = [](std::string_view outer, std::string_view inner) {
    return read(fmt::format(R"({{{}"text_config": {}}})", outer, config("qwen3_vl_text", inner)))
        .shape.tied_embeddings;
  };
  EXPECT_FALSE(tied("", ""));
  EXPECT_TRUE(tied(R"("tie_word_embeddings": true, )", ""));
  EXPECT_TRUE(tied("", R"("tie_word_embeddings": true)"));
  EXPECT_FALSE(tied(R"("tie_word_embeddings": false, )", ""));
  EXPECT_TRUE(read(config("gemma2", "")).shape.tied_embeddings);
  EXPECT_FALSE(read(config("gemma2", R"("tie_word_embeddings": false)")).shape.tied_embeddings);
}

TEST(ConfigFamilies, FormatsOfWeights) {
  const auto format = [](std::string_view quantisation) {
    return read(config("llama", fmt::format(R"("quantization_config": {})", quantisation)))
        .weights_format;
  };
  EXPECT_EQ(format(R"({"quant_method": "fp8"})"), "fp8_e4m3");
  EXPECT_EQ(format(R"({"quant_method": "gptq", "bits": 4, "group_size": 128})"), "int4");
  EXPECT_EQ(format(R"({"quant_method": "gptq", "bits": 8, "group_size": -1})"), "int8");
  EXPECT_EQ(format(R"({"quant_method": "awq", "w_bit": 4, "q_group_size": 64})"), "int4");
  EXPECT_EQ(format(R"({"quant_method": "bitsandbytes", "load_in_4bit": true})"), "int4");
  EXPECT_EQ(format(R"({"quant_method": "compressed-tensors", "config_groups": {"group_0":
                       {"weights": {"num_bits": 8, "type": "float"}}}})"),
            "fp8_e4m3");
  EXPECT_EQ(format(R"({"quant_algo": "NVFP4"})"), "nvfp4");
  EXPECT_EQ(format(R"({"quant_method": "new"})"), "bf16");
  EXPECT_TRUE(has_note(read(config("llama", R"("quantization_config": {"quant_method": "new"})")),
                       "\"new\" is not known here"));
  EXPECT_TRUE(has_note(read(config("llama", R"("quantization_config": {"quant_method": "gptq",
                       "bits": 4, "group_size": 128})")),
                       "the scales of groups of 128 are not counted"));
  const ModelSpec experts = read(config("kimi_k2", R"("num_experts": 8, "quantization_config": {
      "quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"],
      "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}})"));
  EXPECT_EQ(experts.weights_format, "bf16");
  EXPECT_EQ(experts.expert_weights_format, "int4");
  EXPECT_EQ(experts.ends_weights_format, "");
  EXPECT_EQ(read(config("x", R"("dtype": "float16")")).kv_format, "f16");
  EXPECT_NE(failure_of(config("x", R"("quantization_config": {"quant_method": "gptq",
                                      "bits": "4"})")),
            "");
}

}  // namespace
}  // namespace kvarena::capacity
