#include "capacity/files/gguf.hpp"

#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "support/gguf_writer.hpp"
#include "support/text_matchers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::capacity {
namespace {

using test::GgufWriter;
using test::HollowBytes;

struct Outcome {
  ModelSpec model;
  std::string failure;  // "" when there is a model
};

Outcome model_of(const GgufWriter& writer) {
  Outcome outcome;
  GgufHeader header;
  ReadFailure failure;
  Status status = parse_gguf(HollowBytes(writer.header(), writer.data_bytes()), header, failure);
  if (status) status = model_from_gguf(header, "some/m.gguf", outcome.model, failure);
  if (!status) {
    EXPECT_EQ(status, status_of(failure));
    outcome.failure = to_string(failure);
  }
  return outcome;
}

// The keys that every converter writes, for a model of this shape.
GgufWriter keys_of(std::string_view architecture, const TransformerShape& shape) {
  GgufWriter writer;
  writer.string("general.architecture", architecture);
  const auto number = [&](std::string_view key, std::int64_t value) {
    writer.number(fmt::format("{}.{}", architecture, key), static_cast<std::uint32_t>(value));
  };
  number("block_count", shape.num_layers);
  number("embedding_length", shape.hidden);
  number("context_length", shape.max_position);
  number("attention.head_count", shape.num_q_heads);
  if (shape.mla.kv_lora_rank == 0) {
    number("attention.head_count_kv", shape.num_kv_heads);
    if (shape.head_dim * shape.num_q_heads != shape.hidden) {
      number("attention.key_length", shape.head_dim);
      number("attention.value_length", shape.head_dim);
    }
  }
  if (shape.ffn > 0) number("feed_forward_length", shape.ffn);
  if (shape.moe.num_experts > 0) {
    number("expert_count", shape.moe.num_experts);
    number("expert_used_count", shape.moe.experts_per_token);
    number("expert_feed_forward_length", shape.moe.ffn);
    if (shape.moe.num_shared > 0) number("expert_shared_count", shape.moe.num_shared);
    if (shape.moe.first_dense_layers > 0) {
      number("leading_dense_block_count", shape.moe.first_dense_layers);
    }
  }
  return writer;
}

// As many elements as the preset has parameters.
void add_tensors(GgufWriter& writer, const ModelSpec& preset, std::int64_t parameters) {
  const auto hidden = static_cast<std::uint64_t>(preset.shape.hidden);
  const auto vocab = static_cast<std::uint64_t>(preset.shape.vocab);
  writer.tensor("token_embd.weight", "bf16", {hidden, vocab});
  std::uint64_t rest = static_cast<std::uint64_t>(parameters) - hidden * vocab;
  if (!preset.shape.tied_embeddings) {
    writer.tensor("output.weight", "bf16", {hidden, vocab});
    rest -= hidden * vocab;
  }
  writer.tensor("blk.0.rest", "bf16", {rest}).tensor("rope_freqs.weight", "f32", {64});
}

void expect_alike(const ModelSpec& model, const ModelSpec& preset) {
  SCOPED_TRACE(preset.name);
  EXPECT_EQ(model.architecture, preset.architecture);
  EXPECT_EQ(model.shape.num_layers, preset.shape.num_layers);
  EXPECT_EQ(model.shape.hidden, preset.shape.hidden);
  EXPECT_EQ(model.shape.num_q_heads, preset.shape.num_q_heads);
  EXPECT_EQ(model.shape.num_kv_heads, preset.shape.num_kv_heads);
  EXPECT_EQ(model.shape.head_dim, preset.shape.head_dim);
  EXPECT_EQ(model.shape.vocab, preset.shape.vocab);
  EXPECT_EQ(model.shape.tied_embeddings, preset.shape.tied_embeddings);
  EXPECT_EQ(model.shape.max_position, preset.shape.max_position);
  EXPECT_EQ(model.shape.moe.num_experts, preset.shape.moe.num_experts);
  EXPECT_EQ(kv_elements_per_token(model), kv_elements_per_token(preset));
  ASSERT_EQ(model.groups.size(), preset.groups.size());
  for (const CacheGroup& wanted : preset.groups) {
    const auto group = std::find_if(model.groups.begin(), model.groups.end(),
                                    [&](const CacheGroup& g) { return g.kind == wanted.kind; });
    ASSERT_NE(group, model.groups.end()) << name_of(wanted.kind);
    EXPECT_EQ(group->num_layers, wanted.num_layers);
    EXPECT_EQ(group->num_kv_heads, wanted.num_kv_heads);
    EXPECT_EQ(group->head_dim_k, wanted.head_dim_k);
    EXPECT_EQ(group->head_dim_v, wanted.head_dim_v);
    EXPECT_EQ(group->limit_tokens, wanted.limit_tokens);
    EXPECT_EQ(group->latent_dim, wanted.latent_dim);
    EXPECT_EQ(group->latent_value_dim, wanted.latent_value_dim);
  }
}

struct Case {
  std::string_view preset;
  std::string_view architecture;
  std::uint32_t window = 0;
};

TEST(GgufModel, IsThePresetOfTheSameModel) {
  const Case cases[] = {
      {"Llama-3.1-8B", "llama"},
      {"Llama-2-70B", "llama"},
      {"Qwen2.5-0.5B", "qwen2"},
      {"Qwen2.5-7B", "qwen2"},
      {"Qwen3-32B", "qwen3"},
      {"Qwen3-30B-A3B", "qwen3moe"},
      {"Mixtral-8x7B-v0.1", "llama"},
      {"Phi-3-mini-4k-instruct", "phi3", 2047},
      {"Phi-3-mini-128k-instruct", "phi3", 262144},
      {"Gemma-2-9B", "gemma2", 4096},
      {"Gemma-3-27B", "gemma3", 1024},
      {"gpt-oss-20b", "gpt-oss", 128},
      {"Llama-4-Scout-17B-16E", "llama4"},
  };
  for (const Case& c : cases) {
    const ModelSpec preset = find_model_preset(c.preset).value();
    const std::int64_t parameters = preset.parameters.value_or(*preset.parameters_about);
    GgufWriter writer = keys_of(c.architecture, preset.shape);
    if (c.window > 0) {
      writer.number(fmt::format("{}.attention.sliding_window", c.architecture), c.window);
    }
    add_tensors(writer, preset, parameters);
    const Outcome outcome = model_of(writer);
    ASSERT_EQ(outcome.failure, "") << c.preset;
    expect_alike(outcome.model, preset);
    EXPECT_EQ(outcome.model.parameters, parameters) << c.preset;
    EXPECT_EQ(outcome.model.weights_bytes, parameters * 2 + 64 * 4) << c.preset;
    EXPECT_EQ(outcome.model.weights_format, "bf16");
    ASSERT_EQ(outcome.model.weights_by_dtype.size(), 2U) << c.preset;
    EXPECT_EQ(outcome.model.weights_by_dtype[0].bytes, parameters * 2);
    EXPECT_EQ(outcome.model.weights_by_dtype[1].type, "f32");
    EXPECT_EQ(outcome.model.weights_by_dtype[1].elements, 64);
    EXPECT_EQ(outcome.model.name, "m");
    if (preset.parameters && !preset.shape.has_biases) {  // keys say nothing of them
      EXPECT_EQ(outcome.model.parts.size(), preset.parts.size()) << c.preset;
    }
  }
}

// As llama.cpp writes T5, of which config.json adds as much: 512 tokens of 24 layers.
TEST(GgufModel, ADecoderReadsItsEncoder) {
  TransformerShape shape{.num_layers = 24,
                         .hidden = 1024,
                         .num_q_heads = 16,
                         .num_kv_heads = 16,
                         .head_dim = 64,
                         .ffn = 2816,
                         .max_position = 512,
                         .moe = {},
                         .mla = {}};
  const Outcome t5 = model_of(keys_of("t5", shape));
  ASSERT_EQ(t5.failure, "");
  ASSERT_EQ(t5.model.groups.size(), 2U);
  EXPECT_EQ(t5.model.groups[0].kind, CacheKind::full);
  const CacheGroup& cross = t5.model.groups[1];
  EXPECT_EQ(cross.kind, CacheKind::cross);
  EXPECT_EQ(cross.limit_tokens * cross.num_layers * cross.num_kv_heads *
                (cross.head_dim_k + cross.head_dim_v) * 2,
            50'331'648);
  GgufWriter uneven = keys_of("t5", shape);
  uneven.number("t5.decoder_block_count", 6);
  EXPECT_EQ(model_of(uneven).model.groups[1].num_layers, 6);
  EXPECT_EQ(model_of(uneven).model.shape.num_layers, 6) << "of an encoder nothing is kept";
  shape.max_position = 0;
  EXPECT_HAS(model_of(keys_of("t5", shape)).failure, "t5.context_length");
}

TEST(GgufModel, LayersThatReadAnImage) {
  const TransformerShape shape{.num_layers = 40,
                               .hidden = 4096,
                               .num_q_heads = 32,
                               .num_kv_heads = 8,
                               .head_dim = 128,
                               .ffn = 14336,
                               .max_position = 131'072,
                               .moe = {},
                               .mla = {}};
  const auto writer_of = [&](const std::vector<std::int32_t>& layers, std::uint32_t patch) {
    GgufWriter writer = keys_of("mllama", shape);
    writer.array("mllama.attention.cross_attention_layers", 5, layers);
    writer.number("mllama.vision.image_size", 560).number("mllama.vision.patch_size", patch);
    writer.number("mllama.vision.max_num_tiles", 4);
    return writer;
  };
  const Outcome image = model_of(writer_of({3, 8, 13, 18, 23, 28, 33, 38}, 14));
  ASSERT_EQ(image.failure, "");
  ASSERT_EQ(image.model.groups.size(), 2U);
  EXPECT_EQ(image.model.groups[0].num_layers, 32);
  EXPECT_EQ(image.model.groups[1].kind, CacheKind::cross);
  EXPECT_EQ(image.model.groups[1].num_layers, 8);
  EXPECT_EQ(image.model.groups[1].limit_tokens, 4 * (40 * 40 + 1));
  EXPECT_EQ(image.model.notes.size(), 1U);
  EXPECT_HAS(model_of(writer_of({3, 40}, 14)).failure, "layers 0 .. 39");
  EXPECT_HAS(model_of(writer_of({3}, 0)).failure, "vision.patch_size");
}

// As converters wrote DeepSeek before and after llama.cpp caches the latent.
TEST(GgufModel, LatentAttention) {
  const ModelSpec preset = find_model_preset("DeepSeek-V2-Lite").value();
  for (const bool caches_latent : {false, true}) {
    GgufWriter writer = keys_of("deepseek2", preset.shape);
    writer.number("deepseek2.attention.kv_lora_rank", 512)
        .number("deepseek2.rope.dimension_count", 64);
    writer.number("deepseek2.attention.head_count_kv", caches_latent ? 1 : 16);
    writer.number("deepseek2.attention.key_length", caches_latent ? 576 : 192);
    writer.number("deepseek2.attention.value_length", caches_latent ? 512 : 128);
    if (caches_latent) {
      writer.number("deepseek2.attention.key_length_mla", 192);
      writer.number("deepseek2.attention.value_length_mla", 128);
    }
    // 15.7e9 in all: embeddings and heads, 27 layers of attention, a dense MLP, 26 of experts.
    constexpr std::int64_t kAttention =
        2048 * 16 * 192 + 2048 * 576 + 512 + 512 * 16 * 256 + 16 * 128 * 2048 + 2 * 2048;
    constexpr std::int64_t kExperts = 3LL * 2048 * 1408 * (64 + 2) + 2048 * 64;
    constexpr std::int64_t kAll =
        2LL * 102400 * 2048 + 2048 + 27 * kAttention + 3 * 2048 * 10944 + 26 * kExperts;
    add_tensors(writer, preset, kAll);
    const Outcome outcome = model_of(writer);
    ASSERT_EQ(outcome.failure, "");
    expect_alike(outcome.model, preset);
    EXPECT_EQ(outcome.model.shape.mla.nope_dim, 128);
    EXPECT_EQ(outcome.model.shape.mla.value_dim, 128);
    EXPECT_EQ(outcome.model.parameters, kAll);
    EXPECT_GT(outcome.model.parts.size(), 6u)
        << "the parts that the shapes give sum up to the tensors";
  }
}

GgufWriter tiny(std::string_view architecture) {
  TransformerShape shape;
  shape.num_layers = 4;
  shape.hidden = 64;
  shape.num_q_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 16;
  shape.ffn = 128;
  shape.max_position = 100'000;
  return keys_of(architecture, shape);
}

TEST(GgufModel, HeadsByLayerMakeGroups) {
  GgufWriter writer;
  writer.string("general.architecture", "deci").string("general.name", "D");
  writer.number("deci.block_count", 5).number("deci.embedding_length", 64);
  writer.array<std::uint32_t>("deci.attention.head_count", GgufWriter::kU32, {4, 4, 0, 4, 4});
  writer.array<std::uint32_t>("deci.attention.head_count_kv", GgufWriter::kU32, {2, 4, 0, 2, 0});
  writer.texts("tokenizer.ggml.tokens", 77, "t");
  const Outcome outcome = model_of(writer);
  ASSERT_EQ(outcome.failure, "");
  ASSERT_EQ(outcome.model.groups.size(), 2u);
  EXPECT_EQ(outcome.model.groups[0].num_layers, 2);
  EXPECT_EQ(outcome.model.groups[0].num_kv_heads, 2);
  EXPECT_EQ(outcome.model.groups[1].num_kv_heads, 4);
  EXPECT_EQ(outcome.model.shape.vocab, 77);
  EXPECT_EQ(outcome.model.name, "D");
  EXPECT_EQ(outcome.model.weights_bytes, std::nullopt);
}

TEST(GgufModel, WindowsByKeyArrayOrNotAtAll) {
  const auto layers = [](const GgufWriter& writer, CacheKind kind) {
    std::int32_t count = 0;
    const Outcome outcome = model_of(writer);
    EXPECT_EQ(outcome.failure, "");
    for (const CacheGroup& g : outcome.model.groups) count += g.kind == kind ? g.num_layers : 0;
    return count;
  };
  EXPECT_EQ(layers(tiny("gemma3"), CacheKind::full), 4) << "no window given";
  GgufWriter windowed = tiny("gemma3").number("gemma3.attention.sliding_window", 512);
  EXPECT_EQ(layers(windowed, CacheKind::window), 4) << "the sixth would be full";
  GgufWriter two = GgufWriter(windowed).number("gemma3.attention.sliding_window_pattern", 2);
  EXPECT_EQ(layers(two, CacheKind::window), 2);
  GgufWriter array = windowed;
  array.array<std::uint8_t>("gemma3.attention.sliding_window_pattern", GgufWriter::kBool,
                            {1, 0, 0, 0});
  EXPECT_EQ(layers(array, CacheKind::full), 3);
  GgufWriter unknown = tiny("new").number("new.attention.sliding_window", 512);
  EXPECT_EQ(layers(unknown, CacheKind::full), 4) << "which layers is not known";
  EXPECT_EQ(layers(unknown.number("new.attention.sliding_window_pattern", 4), CacheKind::full), 1);
}

TEST(GgufModel, SharedKvRecurrentAndPredictingLayers) {
  GgufWriter shared = tiny("gemma3n").number("gemma3n.attention.sliding_window", 512);
  shared.array<std::uint8_t>("gemma3n.attention.sliding_window_pattern", GgufWriter::kBool,
                             {1, 0, 1, 0});
  const Outcome sharing = model_of(shared.number("gemma3n.attention.shared_kv_layers", 2));
  ASSERT_EQ(sharing.failure, "");
  ASSERT_EQ(sharing.model.groups.size(), 2u);
  EXPECT_EQ(sharing.model.groups[0].num_layers, 1);
  EXPECT_EQ(sharing.model.groups[0].num_sharing_layers, 1);
  EXPECT_EQ(sharing.model.groups[0].layers, (std::vector<CacheLayer>{{0, -1}, {2, 0}}));
  EXPECT_EQ(sharing.model.groups[1].layers, (std::vector<CacheLayer>{{1, -1}, {3, 1}}));

  GgufWriter hybrid = tiny("qwen3next");
  hybrid.number("qwen3next.ssm.state_size", 128).number("qwen3next.ssm.inner_size", 4096);
  hybrid.number("qwen3next.ssm.conv_kernel", 4).number("qwen3next.ssm.group_count", 16);
  const Outcome mixed = model_of(hybrid);
  ASSERT_EQ(mixed.failure, "");
  ASSERT_EQ(mixed.model.groups.size(), 2u);
  EXPECT_EQ(mixed.model.groups[0].kind, CacheKind::recurrent);
  EXPECT_EQ(mixed.model.groups[0].num_layers, 3);
  EXPECT_EQ(mixed.model.groups[0].state_elements, 128 * 4096);
  EXPECT_EQ(mixed.model.groups[0].conv_elements, 3 * (4096 + 2 * 16 * 128));

  GgufWriter both = tiny("falcon-h1").number("falcon-h1.ssm.state_size", 128);
  both.number("falcon-h1.ssm.inner_size", 4096).number("falcon-h1.ssm.conv_kernel", 4);
  const Outcome parallel = model_of(both);
  ASSERT_EQ(parallel.failure, "");
  ASSERT_EQ(parallel.model.groups.size(), 2u) << "attention and a state in every layer";
  EXPECT_EQ(parallel.model.groups[0].num_layers, 4);
  EXPECT_EQ(parallel.model.groups[1].num_layers, 4);

  const Outcome predicting = model_of(tiny("glm4moe").number("glm4moe.nextn_predict_layers", 1));
  EXPECT_EQ(predicting.model.groups.at(0).num_layers, 3);
}

/// Bytes in bf16: of a token, and of all that is kept whatever the length.
std::pair<std::int64_t, std::int64_t> token_and_fixed_bytes(const ModelSpec& model) {
  std::pair<std::int64_t, std::int64_t> bytes;
  const KvMemoryOptions options{.format = *find_storage_format("bf16")};
  for (const GroupMemory& group : group_memory(model, options).value()) {
    bytes.first += group.bytes_per_token;
    bytes.second += group.block_size_tokens == 0 ? group.unit_bytes : 0;
  }
  return bytes;
}

// Of Qwen3-Next every fourth layer is attention: said by an interval, by a list, or by nobody.
TEST(GgufModel, LayersOfDeltaNets) {
  const TransformerShape shape{.num_layers = 48,
                               .hidden = 2048,
                               .num_q_heads = 16,
                               .num_kv_heads = 2,
                               .head_dim = 256,
                               .max_position = 262'144,
                               .moe = {},
                               .mla = {}};
  for (const std::string_view architecture : {"qwen3next", "qwen35", "qwen35moe"}) {
    const auto key = [&](std::string_view name) {
      return fmt::format("{}.{}", architecture, name);
    };
    GgufWriter silent = keys_of(architecture, shape);
    silent.number(key("ssm.state_size"), 128).number(key("ssm.inner_size"), 4096);
    silent.number(key("ssm.conv_kernel"), 4).number(key("ssm.group_count"), 16);
    const auto expect_bytes = [&](const GgufWriter& writer, std::int64_t token,
                                  std::int64_t fixed) {
      const Outcome outcome = model_of(writer);
      ASSERT_EQ(outcome.failure, "");
      EXPECT_EQ(token_and_fixed_bytes(outcome.model), std::pair(token, fixed)) << architecture;
    };
    expect_bytes(silent, 24'576, 77'266'944);
    expect_bytes(GgufWriter(silent).number(key("full_attention_interval"), 4), 24'576, 77'266'944);
    expect_bytes(GgufWriter(silent).number(key("full_attention_interval"), 2), 49'152, 51'511'296);
    std::vector<std::uint8_t> listed(48, 1);
    listed[0] = 0;
    GgufWriter writer = silent;
    writer.number(key("full_attention_interval"), 4);
    writer.array<std::uint8_t>(key("attention.recurrent_layers"), GgufWriter::kBool, listed);
    expect_bytes(writer, 2'048, 100'876'288);
    GgufWriter shorter = silent;
    shorter.array<std::uint8_t>(key("attention.recurrent_layers"), GgufWriter::kBool, {1, 0});
    EXPECT_HAS(model_of(shorter).failure, "attention.recurrent_layers: found an array of 2");
  }
}

// Kimi-Linear-48B-A3B, as its converter writes it: layers without KV heads keep 128 x 128 x 32
// numbers of f32 and three convolutions.
TEST(GgufModel, LayersOfKimiDeltaAttention) {
  GgufWriter kimi;
  kimi.string("general.architecture", "kimi-linear").number("kimi-linear.block_count", 27);
  kimi.number("kimi-linear.embedding_length", 2304).number("kimi-linear.feed_forward_length", 9216);
  kimi.number("kimi-linear.attention.head_count", 32);
  std::vector<std::uint32_t> kv_heads(27, 0);
  for (const std::size_t layer : {3u, 7u, 11u, 15u, 19u, 23u, 26u}) kv_heads[layer] = 32;
  kimi.array("kimi-linear.attention.head_count_kv", GgufWriter::kU32, kv_heads);
  kimi.number("kimi-linear.attention.kv_lora_rank", 512);
  kimi.number("kimi-linear.rope.dimension_count", 64);
  kimi.number("kimi-linear.kda.head_dim", 128);
  EXPECT_HAS(model_of(kimi).failure, "kimi-linear.ssm.conv_kernel: found no such key");
  const Outcome outcome = model_of(kimi.number("kimi-linear.ssm.conv_kernel", 4));
  ASSERT_EQ(outcome.failure, "");
  EXPECT_EQ(token_and_fixed_bytes(outcome.model),
            std::pair(std::int64_t{7 * 576 * 2},
                      20 * (128 * 128 * 32 * 4 + std::int64_t{3 * 3 * 32 * 128 * 2})));
}

// LFM2-1.2B: ten short convolutions of three tokens and six layers of attention.
TEST(GgufModel, LayersOfShortConvolutions) {
  GgufWriter lfm2;
  lfm2.string("general.architecture", "lfm2").number("lfm2.block_count", 16);
  lfm2.number("lfm2.embedding_length", 2048).number("lfm2.attention.head_count", 32);
  lfm2.number("lfm2.feed_forward_length", 8192);
  std::vector<std::uint32_t> kv_heads(16, 0);
  for (const std::size_t layer : {2u, 5u, 8u, 10u, 12u, 14u}) kv_heads[layer] = 8;
  lfm2.array("lfm2.attention.head_count_kv", GgufWriter::kU32, kv_heads);
  EXPECT_EQ(model_of(lfm2).failure,
            "some/m.gguf: lfm2.attention.head_count_kv: found layer 0 without attention, and no "
            "state that is known; expected KV heads, or the keys of a recurrent layer: ssm, kda or "
            "shortconv");
  const Outcome outcome = model_of(lfm2.number("lfm2.shortconv.l_cache", 3));
  ASSERT_EQ(outcome.failure, "");
  EXPECT_EQ(token_and_fixed_bytes(outcome.model),
            std::pair(std::int64_t{6 * 2 * 8 * 64 * 2}, std::int64_t{10 * 2 * 2048 * 2}));
}

TEST(GgufModel, ItsNameHasNoControlCharacters) {
  const Outcome outcome = model_of(tiny("llama").string("general.name",
                                                        "M\xc3\xa4 \x1b[2J\n\xc2\x9b"
                                                        "2J"));
  ASSERT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.model.name, "M\xc3\xa4 ?[2J??2J");
  const std::string letters(127, 'm');
  const Outcome longer =
      model_of(tiny("llama").string("general.name", fmt::format("{}\xc3\xa4", letters)));
  EXPECT_EQ(longer.model.name, letters) << "no letter is cut in two";
}

TEST(GgufModel, NamesTheKeyThatIsMissingOrWrong) {
  EXPECT_EQ(model_of(GgufWriter()).failure,
            "some/m.gguf: general.architecture: found no such key; expected the name of an "
            "architecture, such as \"llama\"");
  GgufWriter writer;
  writer.string("general.architecture", "llama");
  EXPECT_EQ(model_of(writer).failure,
            "some/m.gguf: llama.block_count: found no such key; expected a whole number 1 .. 4096");
  writer.number("llama.block_count", 2);
  EXPECT_HAS(model_of(writer).failure, "llama.embedding_length: found no such key");
  writer.number("llama.embedding_length", 64);
  EXPECT_HAS(model_of(writer).failure, "llama.attention.head_count: found no such key");
  const auto with = [&](std::string_view key, std::uint32_t type, const std::string& bytes) {
    return model_of(GgufWriter(writer).raw(key, type, bytes)).failure;
  };
  EXPECT_EQ(with("llama.attention.head_count", GgufWriter::kU32, test::little_endian(4u)), "");
  EXPECT_HAS(with("llama.attention.head_count", GgufWriter::kText, GgufWriter::text("x")),
             "found the text \"x\"; expected a whole number 0 .. 65536");
  EXPECT_HAS(with("llama.attention.head_count", GgufWriter::kU32, test::little_endian(70'000u)),
             "found the number 70000");
  EXPECT_HAS(with("llama.attention.head_count", GgufWriter::kU32, test::little_endian(0u)),
             "no layer that keeps anything");
  writer.array<std::uint32_t>("llama.attention.head_count", GgufWriter::kU32, {4});
  EXPECT_HAS(model_of(writer).failure,
             "found an array of 1; expected a whole number 0 .. 65536 "
             "for each of 2 layers");
}

}  // namespace
}  // namespace kvarena::capacity
