// `kvarena plan`: what it says, its exit codes, its messages.

#include "support/test_files.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>

namespace kvarena::tools {
namespace {

using nlohmann::json;

/// `kvarena plan` with `words`, separated by blanks.
Outcome plan(const std::string& words) {
  std::vector<std::string> arguments{"plan"};
  std::istringstream in(words);
  for (std::string word; in >> word;) arguments.push_back(word);
  return run(arguments);
}

json planned(const std::string& words) { return json::parse(plan(words + " -q --json -").out); }

TEST(PlanCommand, WritesEveryFigure) {
  const json p = planned("--model Llama-3.1-8B --gpu RTX-4090 --context 4096");
  EXPECT_EQ(p.at("parameters"), 8'030'261'248);
  EXPECT_EQ(p.at("weights_bytes"), 16'060'522'496);
  EXPECT_EQ(p.at("kv_bytes_per_token"), 131'072);
  EXPECT_EQ(p.at("kv_fixed_bytes_per_sequence"), 0);
  EXPECT_EQ(p.at("block_bytes"), 2'097'152);
  EXPECT_EQ(p.at("max_batch"), p.at("num_blocks").get<std::int64_t>() / 256);
  EXPECT_EQ(p.at("limited_by"), "kv_cache");
  EXPECT_EQ(p.at("total_bytes"), p.at("weights_bytes").get<std::int64_t>() +
                                     p.at("kv_cache_bytes").get<std::int64_t>() +
                                     p.at("activation_bytes").get<std::int64_t>() +
                                     p.at("overhead_bytes").get<std::int64_t>());
  EXPECT_GE(p.at("max_context"), 4096);
  EXPECT_EQ(p.at("fits"), true);
  EXPECT_FALSE(p.contains("explain"));
}

TEST(PlanCommand, ShowsBothRetentions) {
  const std::string words = "--model Phi-3-mini-4k-instruct --gpu 24GiB";
  const json p = planned(words);
  EXPECT_EQ(p.at("full_bytes_at_context"), 1'610'612'736);
  EXPECT_EQ(p.at("model_bytes_at_context"), 805'306'368);
  const Outcome text = plan(words);
  EXPECT_TRUE(contains(text.out,
                       "all tokens kept 1,610,612,736 B, those in the windows "
                       "805,306,368 B"))
      << text.out;
  EXPECT_GT(planned(words + " --retention model").at("max_batch"), p.at("max_batch"));
}

TEST(PlanCommand, SaysWhatACacheCannotHoldYet) {
  const json p = planned("--model Qwen3.5-27B --gpu H200-SXM --context 8192");
  EXPECT_EQ(p.at("fits"), true);
  EXPECT_TRUE(p.at("settings").is_null());
  EXPECT_TRUE(contains(p.at("settings_refused"), "one group of layers, not 2"))
      << p.at("settings_refused");
  const Outcome text = plan("--model Qwen3.5-27B --gpu H200-SXM --context 8192");
  EXPECT_TRUE(contains(text.out, "153,944,064 B + 0 x tokens")) << text.out;
  EXPECT_TRUE(contains(text.out, "a KvCache cannot hold this yet")) << text.out;
  EXPECT_EQ(planned("--model Llama-3.1-8B --gpu L4 --context 8192").at("settings").at("num_blocks"),
            planned("--model Llama-3.1-8B --gpu L4 --context 8192").at("num_blocks"));
}

TEST(PlanCommand, DoesNotFitAndSaysWhatWould) {
  const Outcome seen = plan("--model Llama-3.1-8B --gpu L4 --batch 1000 --context 4096 --json -");
  EXPECT_EQ(seen.code, ExitCode::does_not_fit);
  const json p = json::parse(seen.out);
  EXPECT_EQ(p.at("fits"), false);
  ASSERT_GE(p.at("changes_that_fit").size(), 1U);
  EXPECT_TRUE(contains(seen.err, "DOES NOT FIT"));
  for (const json& change : p.at("changes_that_fit")) {
    std::string again = "--model Llama-3.1-8B --gpu L4 ";
    const auto words = change.get<std::string>();
    if (!words.starts_with("--batch")) again += "--batch 1000 ";
    if (!words.starts_with("--context")) again += "--context 4096 ";
    EXPECT_EQ(plan(again + words).code, ExitCode::ok) << words;
  }
}

TEST(PlanCommand, ExplainsWithTheNumbersIn) {
  const Outcome seen = plan("--model Qwen2.5-0.5B --gpu L4 --context 2048 --explain");
  EXPECT_EQ(seen.code, ExitCode::ok);
  EXPECT_TRUE(contains(seen.out, "494,032,768 parameters x 2 B (bf16) = 988,065,536 B"));
  EXPECT_TRUE(contains(seen.out,
                       "16 tokens x 24 layers x 2 heads x (64 + 64) elements x 2 B = "
                       "196,608 B"))
      << seen.out;
}

TEST(PlanCommand, ComparesModelsAndGpus) {
  const Outcome seen = plan("--model Llama-3.1-8B,Gemma-3-27B --gpu L4,H200-SXM --context 8192");
  EXPECT_EQ(seen.code, ExitCode::ok) << "some fit";
  EXPECT_EQ(std::ranges::count(seen.out, '\n'), 5);
  EXPECT_TRUE(contains(seen.out, "DOES NOT FIT"));
  const json p = planned("--model Llama-3.1-8B,Gemma-3-27B --gpu L4 --context 8192");
  EXPECT_EQ(p.at("plans").size(), 2U);
  EXPECT_EQ(plan("--model Gemma-3-27B,Llama-3.1-70B --gpu L4").code, ExitCode::does_not_fit);
}

TEST(PlanCommand, PlansForATrace) {
  std::ostringstream lines;
  for (int i = 1; i <= 100; ++i) {
    const int input = 100 * i - 50;
    lines << R"({"timestamp": 0, "input_length": )" << input
          << R"(, "output_length": 50, "hash_ids": [)" << 1000 * i;
    for (int k = 1; k < (input + 511) / 512; ++k) lines << ", " << 1000 * i + k;
    lines << "]}\n";
  }
  const test::TempFile trace(lines.str());
  const std::string words = "--model Qwen2.5-0.5B --gpu 8GiB --percentile 90 --trace ";
  const json rows = planned(words + trace.path()).at("trace").at("rows");
  EXPECT_EQ(rows[0].at("tokens"), 5000);
  EXPECT_EQ(rows[1].at("tokens"), 9000);
  const json at = planned("--model Qwen2.5-0.5B --gpu 8GiB --context 9000");
  EXPECT_EQ(rows[1].at("max_batch"), at.at("max_batch"));
  EXPECT_EQ(plan(words + "/no/such/file").code, ExitCode::bad_input);
}

TEST(PlanCommand, TakesAModelByNumbers) {
  const std::string shape = "--layers 24 --kv-heads 2 --q-heads 14 --head-dim 64 --gpu 8GiB ";
  const json p = planned(shape + "--parameters 494032768 --context 2048");
  EXPECT_EQ(p.at("weights_bytes"), 988'065'536);
  EXPECT_EQ(p.at("kv_bytes_per_token"), 12'288);
  EXPECT_EQ(planned(shape + "--ffn 4864 --vocab 151936 --context 2048").at("parameters_source"),
            "from shapes");
}

TEST(PlanCommand, RefusesNonsenseInWords) {
  const auto usage = [](const std::string& words, std::string_view says) {
    const Outcome seen = plan(words);
    EXPECT_EQ(seen.code, ExitCode::usage) << words;
    EXPECT_TRUE(contains(seen.err, says)) << words << "\n" << seen.err;
    EXPECT_EQ(seen.out, "");
  };
  usage("--gpu L4", "no model to plan for");
  usage("--model Llama-3.1-8b --layers 3 --gpu L4", "--model and numbers");
  usage("--model Lama --gpu L4", "no built-in model");
  usage("--model Llama-3.9 --gpu L4", "did you mean Llama-2-13B");
  usage("--model Llama-3.1-8B --gpu L5", "H200-SXM");
  usage("--model Llama-3.1-8B --gpu 0B", "one of A10");
  usage("--model Llama-3.1-8B --gpu L4 --kv-dtype f17", "q8_0");
  usage("--model Llama-3.1-8B --gpu L4 --utilization 1.5", "--utilization");
  usage("--model Llama-3.1-8B --gpu L4 --context 0", "--context");
  usage("--model GLM-5 --gpu L4", "neither its parameters nor its weights");
  usage("--layers 3 --gpu L4", "--kv-heads, --head-dim, --parameters");
}

TEST(PlanCommand, NamesWhatItKnows) {
  const Outcome seen = plan("--list");
  EXPECT_EQ(seen.code, ExitCode::ok);
  EXPECT_TRUE(contains(seen.out, "Phi-3-mini-4k-instruct"));
  EXPECT_TRUE(contains(seen.out, "H200-SXM"));
}

}  // namespace
}  // namespace kvarena::tools
