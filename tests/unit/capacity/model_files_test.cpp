// Models from files of every kind, told apart by their content.

#include "kvarena/capacity/model_files.hpp"

#include "kvarena/capacity/memory_plan.hpp"
#include "support/gguf_writer.hpp"
#include "support/safetensors_writer.hpp"
#include "support/status_matchers.hpp"
#include "support/text_matchers.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace kvarena::capacity {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfig = R"({"model_type": "llama", "num_hidden_layers": 2,
  "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
  "vocab_size": 100, "max_position_embeddings": 256, "torch_dtype": "bfloat16"})";

/// A safetensors file of one tensor.
std::string tensor_file(std::string_view name, std::string_view dtype, std::int64_t elements,
                        std::int64_t bytes) {
  return test::SafetensorsWriter().tensor(name, dtype, {elements}, bytes).file();
}

class ModelFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::temp_directory_path() /
            ("kvarena-models-" + std::to_string(::getpid()) + "-" + test->name());
    folder_ = root_ / "My-Model-2B";
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string add(std::string_view name, std::string_view content) {
    const fs::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }
  static ModelSpec read(const std::string& path) {
    std::string why;
    Result<ModelSpec> model = read_model(path, why);
    EXPECT_OK(model.status()) << why;
    return model ? *std::move(model) : ModelSpec{};
  }
  static std::string failure_of(const std::string& path, StatusCode code) {
    std::string why;
    const Result<ModelSpec> model = read_model(path, why);
    EXPECT_FALSE(model);
    EXPECT_EQ(model.status().code, code) << why;
    EXPECT_EQ(why.find('\n'), why.npos);
    return why;
  }

  fs::path root_;
  fs::path folder_;
};

TEST_F(ModelFiles, AConfiguration) {
  const ModelSpec model = read(add("config.json", kConfig));
  EXPECT_EQ(model.name, "My-Model-2B");
  EXPECT_EQ(model.source, (folder_ / "config.json").string());
  EXPECT_EQ(model.shape.num_layers, 2);
  EXPECT_FALSE(model.weights_bytes);
  EXPECT_EQ(read(add("other.txt", kConfig)).name, "other") << "by content, not by name";
  EXPECT_OK(plan(model, {.memory_bytes = std::int64_t{1} << 30}).status());
}

TEST_F(ModelFiles, AConfigurationInTheCurrentFolder) {
  add("config.json", kConfig);
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  for (const std::string path : {"config.json", "./config.json", ".", "../My-Model-2B/."}) {
    EXPECT_EQ(read(path).name, "My-Model-2B") << path;
  }
  fs::current_path(before);
}

TEST_F(ModelFiles, AFolder) {
  add("config.json", kConfig);
  const ModelSpec bare = read(folder_.string());
  EXPECT_EQ(bare.name, "My-Model-2B");
  EXPECT_FALSE(bare.weights_bytes);
  EXPECT_TRUE(bare.weights_by_dtype.empty());
  ASSERT_EQ(bare.notes.size(), 1U);
  EXPECT_TRUE(bare.notes[0].starts_with("weights are not read: ")) << bare.notes[0];
  const std::string weights = tensor_file("a", "BF16", 100, 200);
  const std::string file = add("model.safetensors", weights);
  for (const std::string& path : {folder_.string(), folder_.string() + "/", file}) {
    const ModelSpec model = read(path);
    EXPECT_EQ(model.weights_bytes, 200) << path;
    EXPECT_EQ(model.parameters, bare.parameters) << "shapes tell";
    EXPECT_EQ(model.source, path);
    EXPECT_EQ(model.name, "My-Model-2B");
  }
  add("model.safetensors", "no tensors");
  EXPECT_HAS(failure_of(folder_.string(), StatusCode::parse_error), "model.safetensors: ");
}

TEST_F(ModelFiles, WeightsSayHowManyWhereShapesDoNot) {
  std::string config(kConfig);
  config.replace(config.find("llama"), 5, "brand");
  add("config.json", config);
  add("model.safetensors", tensor_file("a", "BF16", 100, 200));
  EXPECT_EQ(read(folder_.string()).parameters, 100);
  EXPECT_EQ(read(folder_.string()).parameters_source, "the weights' headers");
  add("model.safetensors", tensor_file("a", "I32", 50, 200));
  EXPECT_FALSE(read(folder_.string()).parameters) << "packed weights";
  EXPECT_EQ(read(folder_.string()).weights_bytes, 200);
}

TEST_F(ModelFiles, AnIndex) {
  add("config.json", kConfig);
  const std::string index =
      add("model.safetensors.index.json", R"({"metadata": {}, "weight_map": {"a": "x-1.safetensors",
          "b": "x-2.safetensors"}})");
  const std::string first = add("x-1.safetensors", tensor_file("a", "F16", 3, 6));
  EXPECT_HAS(failure_of(index, StatusCode::not_found), "x-2.safetensors");
  add("x-2.safetensors", tensor_file("b", "F32", 2, 8));
  for (const std::string& path : {index, first, folder_.string()}) {
    const ModelSpec model = read(path);
    EXPECT_EQ(model.weights_bytes, 14) << path;
    ASSERT_EQ(model.weights_by_dtype.size(), 2U) << path;
    EXPECT_EQ(model.weights_by_dtype[0].type, "F32") << "of the most bytes";
    EXPECT_EQ(model.weights_by_dtype[0].bytes, 8);
    EXPECT_EQ(model.weights_by_dtype[1].type, "F16");
    EXPECT_EQ(model.weights_by_dtype[1].elements, 3);
  }
}

TEST_F(ModelFiles, TensorsAlone) {
  const std::string file = add("weights.bin", tensor_file("a", "F16", 3, 6));
  EXPECT_EQ(failure_of(file, StatusCode::parse_error),
            file + ": found no config.json beside it; expected the model's configuration there");
}

TEST_F(ModelFiles, AGgufFile) {
  test::GgufWriter writer;
  writer.string("general.architecture", "llama").string("general.name", "Small");
  for (const auto& [key, value] : {std::pair<const char*, std::uint32_t>{"block_count", 2},
                                   {"embedding_length", 64},
                                   {"context_length", 256},
                                   {"attention.head_count", 4},
                                   {"attention.head_count_kv", 2},
                                   {"feed_forward_length", 128}}) {
    writer.number(std::string("llama.") + key, value);
  }
  writer.tensor("token_embd.weight", "bf16", {64, 100});
  const std::string file = add("weights", writer.file());
  EXPECT_EQ(read(file).name, "Small");
  EXPECT_EQ(read(file).weights_bytes, 64 * 100 * 2);
  EXPECT_EQ(kv_elements_per_token(read(file)), 2 * 2 * 2 * 16);
  fs::rename(file, folder_ / "weights.gguf");
  EXPECT_EQ(read(folder_.string()).name, "Small") << "a folder with one model in GGUF";
  fs::rename(folder_ / "weights.gguf", folder_ / "best-of-breed.gguf");
  EXPECT_EQ(read(folder_.string()).name, "Small") << "no part of a split model";
  fs::copy(folder_ / "best-of-breed.gguf", folder_ / "second.gguf");
  EXPECT_HAS(failure_of(folder_.string(), StatusCode::parse_error),
             "found no config.json and 2 GGUF files");
}

TEST_F(ModelFiles, AFolderThatCannotBeListed) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = files.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string why = failure_of(folder_.string(), StatusCode::io_error);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(why,
            folder_.string() + ": found Too many open files; expected a folder that can be listed");
}

TEST_F(ModelFiles, WhatIsNoModel) {
  EXPECT_HAS(failure_of((folder_ / "none").string(), StatusCode::not_found), "No such file");
  EXPECT_HAS(failure_of(folder_.string(), StatusCode::parse_error), "and 0 GGUF files");
  failure_of("/dev/zero", StatusCode::parse_error);
  failure_of(std::string("a\0b", 3), StatusCode::not_found);
  failure_of("", StatusCode::not_found);
  for (const std::string_view content : {"", "G", "GGUF", "{", "[]", "hello", "{}"}) {
    failure_of(add("x", content), StatusCode::parse_error);
  }
  const std::string whole = add("config.json", kConfig);
  for (std::size_t size = 0; size < kConfig.size(); ++size) {
    failure_of(add("config.json", kConfig.substr(0, size)), StatusCode::parse_error);
  }
}

}  // namespace
}  // namespace kvarena::capacity
