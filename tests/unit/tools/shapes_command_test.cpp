// `kvarena shapes`.

#include "unit/tools/command_run.hpp"

#include "kvarena/base/shapes.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvarena::tools {
namespace {

using nlohmann::json;

TEST(ShapesCommand, ListsEveryBuiltInShape) {
  const auto outcome = run({"shapes"});
  EXPECT_EQ(outcome.code, ExitCode::ok);
  for (const ModelShape& shape : model_shapes()) {
    EXPECT_TRUE(contains(outcome.out, shape.name));
  }
  const auto list = json::parse(run_line("shapes --json -").out);
  EXPECT_EQ(list.at("shapes").size(), model_shapes().size());
}

TEST(ShapesCommand, OneShapeWithItsArithmetic) {
  const auto outcome = run_line("shapes llama-3.1-8b");
  EXPECT_EQ(outcome.code, ExitCode::ok);
  EXPECT_TRUE(
      contains_all(outcome.out, {"32 layers x 8 heads x (128 + 128) elements x 2 B = 131,072 B",
                                 "16 tokens x 131,072 B = 2,097,152 B (2.00 MiB)"}));
  const auto object =
      json::parse(run_line("shapes Llama-3.1-8B --pool-bytes 1GiB --context 1000 --json -").out);
  EXPECT_EQ(object.at("bytes_per_token"), 131072);
  EXPECT_EQ(object.at("bytes_per_block"), 2097152);
  EXPECT_EQ(object.at("pool").at("blocks"), 512);
  EXPECT_EQ(object.at("context").at("blocks"), 63);
}

TEST(ShapesCommand, NumbersAndChanges) {
  const auto custom = json::parse(
      run_line("shapes --layers 24 --kv-heads 2 --head-dim 64 --dtype bf16 --json -").out);
  EXPECT_EQ(custom.at("bytes_per_token"), 24 * 2 * 128 * 2);
  const auto changed =
      json::parse(run_line("shapes Llama-3.1-8B --dtype int8 --block-size 7 --json -").out);
  EXPECT_EQ(changed.at("bytes_per_token"), 65536);
  EXPECT_EQ(changed.at("block_size"), 7);
  EXPECT_EQ(changed.at("name"), "Llama-3.1-8B (changed)");
}

TEST(ShapesCommand, APoolBelowOneBlockDoesNotFit) {
  EXPECT_TRUE(ended(run_line("shapes Llama-3.1-8B --pool-bytes 1MiB"), ExitCode::does_not_fit,
                    {"2097152"}));
}

TEST(ShapesCommand, ReadsAModelsFiles) {
  const ConfigWorld folder;
  folder.write("work/config.json",
               R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
               "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
               "vocab_size": 100, "max_position_embeddings": 256, "torch_dtype": "bfloat16"})");
  for (const char* name : {"work", "work/config.json"}) {
    const Outcome seen = run({"shapes", folder.path(name), "--json", "-"});
    EXPECT_EQ(seen.code, ExitCode::ok) << seen.err;
    EXPECT_EQ(json::parse(seen.out).at("bytes_per_token"), 2 * 2 * (16 + 16) * 2);
  }
  const Outcome changed = run({"shapes", folder.path("work"), "--dtype", "f32", "--json", "-"});
  EXPECT_EQ(json::parse(changed.out).at("bytes_per_token"), 2 * 2 * (16 + 16) * 4);
  EXPECT_EQ(run({"shapes", folder.write("work/broken.json", "{"), "--json", "-"}).code,
            ExitCode::bad_input);
  const Outcome hybrid = run_line("shapes Nemotron-3-Nano-30B-A3B --context 1000 --json -");
  EXPECT_EQ(hybrid.code, ExitCode::ok) << hybrid.err;
  EXPECT_EQ(json::parse(hybrid.out).at("groups").size(), 2U);
  EXPECT_EQ(json::parse(hybrid.out).at("groups")[0].at("bytes_per_token"), 6144);
}

}  // namespace
}  // namespace kvarena::tools
