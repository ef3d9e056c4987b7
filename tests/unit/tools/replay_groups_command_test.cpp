// `kvarena replay` of models whose layers keep different data: how a model is chosen, and what is
// shown of its groups and pages.

#include "support/test_files.hpp"
#include "support/text_matchers.hpp"
#include "unit/tools/command_run.hpp"

#include "kvarena/capacity/model_presets.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace kvarena::tools {
namespace {

using test::TempFile;

constexpr const char* kTrace =
    "{\"timestamp\": 0, \"input_length\": 1500, \"output_length\": 40, \"hash_ids\": [1, 2, 3]}\n"
    "{\"timestamp\": 9, \"input_length\": 300, \"output_length\": 20, \"hash_ids\": [4]}\n"
    "{\"timestamp\": 20, \"input_length\": 40, \"output_length\": 60, \"hash_ids\": [5]}\n";

class ReplayGroupsCommand : public testing::Test {
 protected:
  Outcome replay(std::vector<std::string> options) const {
    std::vector<std::string> arguments{"replay", trace_.path()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return run(arguments);
  }
  nlohmann::json json_of(std::vector<std::string> options) const {
    options.insert(options.end(), {"--json", "-"});
    const Outcome outcome = replay(std::move(options));
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }

 private:
  TempFile trace_{kTrace};
};

TEST_F(ReplayGroupsCommand, RunsEveryPreset) {
  for (const std::string_view name : capacity::model_preset_names()) {
    const Outcome outcome = replay({"--model", std::string(name), "--json", "-"});
    ASSERT_EQ(outcome.code, ExitCode::ok) << name << ": " << outcome.err;
    const auto json = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(json["completed"], 3) << name;
    EXPECT_EQ(json["preemptions"], 0) << name;
    EXPECT_EQ(json["balanced"], true) << name;
    EXPECT_EQ(json["groups"].is_null(), json["pages"].is_null()) << name;
  }
}

TEST_F(ReplayGroupsCommand, ShowsGroupsPagesAndWaste) {
  const auto json = json_of({"--model", "Gemma-3-27B", "--pool-bytes", "4GB"});
  const auto& pages = json["pages"];
  EXPECT_EQ(pages["page_bytes"], 6'815'744);
  EXPECT_EQ(pages["total"], 4'000'000'000 / 6'815'744);
  EXPECT_EQ(json["num_blocks"], pages["total"]);
  EXPECT_EQ(json["peak_blocks"], pages["peak"]);
  ASSERT_EQ(json["groups"].size(), 2U);
  const auto& full = json["groups"][0];
  const auto& window = json["groups"][1];
  EXPECT_EQ(full["kind"], "full attention");
  EXPECT_EQ(full["layers"], 10);
  EXPECT_EQ(full["blocks_per_page"], 5);
  EXPECT_TRUE(full["limit_tokens"].is_null());
  EXPECT_EQ(window["kind"], "sliding window");
  EXPECT_EQ(window["limit_tokens"], 1024);
  const std::int64_t blocks =
      full["blocks_at_peak"].get<std::int64_t>() * full["block_bytes"].get<std::int64_t>() +
      window["blocks_at_peak"].get<std::int64_t>() * window["block_bytes"].get<std::int64_t>();
  EXPECT_EQ(pages["peak_waste_bytes"], pages["peak"].get<std::int64_t>() * 6'815'744 - blocks);
  EXPECT_EQ(json["waste"], pages["mean_waste"]);
  const Outcome text = replay({"--model", "Gemma-3-27B", "--pool-bytes", "4GB"});
  EXPECT_HAS(text.out, "pages of 6,815,744 B");
  EXPECT_HAS(text.out, "sliding window 1,024");
  EXPECT_HAS(text.out, "% of the bytes of pages in use, mean over time");
  EXPECT_HAS(text.out, "pages: 586 free + 0 of groups + 0 offline = 586");
}

TEST_F(ReplayGroupsCommand, LayersThatAreAlikeHaveNoGroups) {
  const auto json = json_of({"--model", "Llama-3.1-8B", "--blocks", "200"});
  EXPECT_TRUE(json["groups"].is_null());
  EXPECT_TRUE(json["pages"].is_null());
  const auto full = json_of({"--model", "Gemma-3-27B", "--retention", "full"});
  EXPECT_TRUE(full["groups"].is_null());
  // Numbers of heads make a shape whose layers are alike.
  const auto by_numbers = json_of({"--model", "Gemma-3-27B", "--kv-heads", "2"});
  EXPECT_TRUE(by_numbers["groups"].is_null());
}

TEST_F(ReplayGroupsCommand, VerifiesStatesOfTheFirstLayers) {
  const auto json = json_of({"--model", "Qwen3-Next-80B-A3B", "--layers", "4", "--block-size", "32",
                             "--attention", "sample", "--device", "cpu", "--max-running", "2"});
  EXPECT_GT(json["verification"]["state_bytes_written"], 0);
  EXPECT_GT(json["verification"]["state_bytes_compared"], 0);
  EXPECT_GT(json["verification"]["kv_bytes_compared"], 0);
  EXPECT_EQ(json["verification"]["failures"], 0);
}

TEST_F(ReplayGroupsCommand, VerifiesTheKeysOfASparseIndex) {
  const auto json = json_of({"--model", "DeepSeek-V3.2", "--layers", "2", "--attention", "sample",
                             "--device", "cpu", "--max-running", "2"});
  const auto& seen = json["verification"];
  // 576 elements of bf16 in a latent; 128 e4m3 and a scale in a key.
  EXPECT_EQ(seen["index_bytes_written"].get<std::int64_t>() * 1152,
            seen["kv_bytes_written"].get<std::int64_t>() * 132);
  EXPECT_EQ(seen["index_bytes_compared"].get<std::int64_t>() * 1152,
            seen["kv_bytes_compared"].get<std::int64_t>() * 132);
  EXPECT_GT(seen["index_bytes_compared"], 0);
  EXPECT_EQ(seen["failures"], 0);
}

// Checkpoints of states lie at the ends of blocks, whatever their size.
TEST_F(ReplayGroupsCommand, TakesBlocksThatDoNotDivideTheUsualDistance) {
  const auto json =
      json_of({"--model", "Qwen3-Next-80B-A3B", "--layers", "4", "--block-size", "48"});
  EXPECT_EQ(json["groups"].size(), 2U);
}

TEST_F(ReplayGroupsCommand, RefusesWhatDoesNotGoTogether) {
  const auto refusal = [&](std::vector<std::string> options) {
    const Outcome outcome = replay(std::move(options));
    EXPECT_EQ(outcome.code, ExitCode::usage);
    return outcome.err;
  };
  EXPECT_HAS(refusal({"--model", "Gemma-3-27B", "--retention", "model", "--kv-heads", "2"}),
             "--retention model with numbers of heads");
  EXPECT_HAS(refusal({"--model", "Gemma-3-27B", "--layers", "63"}), "at most 62");
  EXPECT_HAS(refusal({"--model", "Qwen3-Next-80B-A3B", "--layers", "3"}), "recurrent layers alone");
  EXPECT_HAS(refusal({"--model", "DeepSeek-V3", "--preempted", "keep"}),
             "keeping preempted blocks");
  EXPECT_HAS(refusal({"--model", "no-such-model"}), "no built-in model shape");
}

}  // namespace
}  // namespace kvarena::tools
