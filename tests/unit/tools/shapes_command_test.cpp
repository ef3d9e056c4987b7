// `kvarena shapes` of a model's files.

#include "unit/tools/config_world.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvarena::tools {
namespace {

using nlohmann::json;

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
  const Outcome hybrid =
      run({"shapes", "Nemotron-3-Nano-30B-A3B", "--context", "1000", "--json", "-"});
  EXPECT_EQ(hybrid.code, ExitCode::ok) << hybrid.err;
  EXPECT_EQ(json::parse(hybrid.out).at("groups").size(), 2U);
  EXPECT_EQ(json::parse(hybrid.out).at("groups")[0].at("bytes_per_token"), 6144);
}

}  // namespace
}  // namespace kvarena::tools
