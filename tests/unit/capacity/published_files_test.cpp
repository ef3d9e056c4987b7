// Files as their publishers wrote them, against what is published of the models (tests/data).

#include "capacity/files/config_json.hpp"
#include "capacity/files/gguf.hpp"
#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/model_files.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "support/gguf_writer.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace kvarena::capacity {
namespace {

const std::string kFolder = KVARENA_TEST_DATA "/models/";

ModelSpec config_of(const std::string& name) {
  std::string why;
  auto model = read_model(kFolder + name, why);
  EXPECT_OK(model.status()) << why;
  return model ? *std::move(model) : ModelSpec{};
}

/// A header with the keys of a listing, "KEY TYPE = VALUE" a line.
ModelSpec gguf_of(const std::string& name) {
  std::ifstream lines(kFolder + name);
  EXPECT_TRUE(lines) << name;
  test::GgufWriter writer;
  std::string key, type, equals, value;
  while (lines >> key >> type >> equals >> value) {
    if (type == "str") writer.string(key, value);
    if (type == "u32") writer.number(key, static_cast<std::uint32_t>(std::stoul(value)));
    if (type == "bool") writer.flag(key, value == "true");
    if (type == "f32") {
      writer.raw(key, test::GgufWriter::kF32, test::little_endian(std::stof(value)));
    }
  }
  const std::string bytes = writer.file();
  const MemoryBytes source(name, bytes);
  GgufHeader header;
  ModelSpec model;
  ReadFailure failure;
  EXPECT_OK(parse_gguf(source, header, failure)) << to_string(failure);
  EXPECT_OK(model_from_gguf(header, name, model, failure)) << to_string(failure);
  return model;
}

std::vector<GroupMemory> kept(const ModelSpec& model) {
  return group_memory(model, {.format = *find_storage_format("bf16"), .kept = KeptTokens::model})
      .value();
}

// 320 KiB a token (Mooncake, FAST 2025); 70.6 billion parameters.
TEST(PublishedFiles, Llama70B) {
  const ModelSpec model = config_of("Llama-3.3-70B-Instruct.json");
  EXPECT_EQ(kept(model)[0].bytes_per_token, 320 * 1024);
  EXPECT_EQ(model.parameters, 70'553'706'496);
}

// A trillion parameters; a latent of 512 + 64 elements in each of 61 layers.
TEST(PublishedFiles, KimiK2) {
  const ModelSpec model = config_of("Kimi-K2-Instruct.json");
  EXPECT_EQ(kept(model)[0].bytes_per_token, 61 * 576 * 2);
  EXPECT_NEAR(static_cast<double>(model.parameters.value()), 1.026e12, 1e9);
}

// Every fourth of 48 layers is attention; the others keep 32 heads of 128 x 128 in f32 and three
// inputs of a convolution over 8,192 channels.
TEST(PublishedFiles, Qwen3Next) {
  const auto groups = kept(config_of("Qwen3-Next-80B-A3B-Thinking.json"));
  ASSERT_EQ(groups.size(), 2U);
  const bool attention_first = groups[0].block_size_tokens > 0;
  const GroupMemory& attention = groups[attention_first ? 0 : 1];
  const GroupMemory& states = groups[attention_first ? 1 : 0];
  EXPECT_EQ(attention.bytes_per_token, 12 * 2 * 2 * 256 * 2);
  EXPECT_EQ(states.unit_bytes, 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2));
}

TEST(PublishedFiles, Llama8BInGguf) {
  const ModelSpec model = gguf_of("Meta-Llama-3.1-8B-Instruct.gguf.txt");
  EXPECT_EQ(model.architecture, "llama");
  EXPECT_EQ(kept(model)[0].bytes_per_token, 131'072);
}

// Five of six layers see 1,024 tokens.
TEST(PublishedFiles, Gemma3InGguf) {
  const auto groups = kept(gguf_of("gemma-3-12b-it.gguf.txt"));
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].num_layers + groups[1].num_layers, 48);
  for (const GroupMemory& group : groups) {
    EXPECT_EQ(group.num_layers, group.limit_tokens == 0 ? 8 : 40);
    EXPECT_EQ(group.bytes_per_token, std::int64_t{group.num_layers} * 2 * 8 * 256 * 2);
    EXPECT_TRUE(group.limit_tokens == 0 || group.limit_tokens == 1024);
  }
}

// As before llama.cpp cached the latent: key_length is the expanded head's.
TEST(PublishedFiles, DeepSeekR1InGguf) {
  const ModelSpec model = gguf_of("DeepSeek-R1.gguf.txt");
  EXPECT_EQ(kept(model)[0].bytes_per_token, 70'272);
  EXPECT_EQ(model.shape.mla.nope_dim, 128);
  EXPECT_EQ(model.shape.moe.num_experts, 256);
}

}  // namespace
}  // namespace kvarena::capacity
