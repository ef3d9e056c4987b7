// `kvarena plan --trace`: how many requests of a trace fit, with a prefix cache and without.

#include "support/test_files.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>
#include <string>

namespace kvarena::tools {
namespace {

using nlohmann::json;

/// `kvarena plan` with `words`, separated by blanks.
Outcome plan(const std::string& words) { return run_line("plan " + words); }

json planned(const std::string& words) { return json::parse(plan(words + " -q --json -").out); }

/// A hundred requests of 100, 200 ... 10,000 tokens.
std::string trace_text() {
  std::ostringstream lines;
  for (int i = 1; i <= 100; ++i) {
    const int input = 100 * i - 50;
    lines << R"({"timestamp": 0, "input_length": )" << input
          << R"(, "output_length": 50, "hash_ids": [)" << 1000 * i;
    for (int k = 1; k < (input + 511) / 512; ++k) lines << ", " << 1000 * i + k;
    lines << "]}\n";
  }
  return lines.str();
}

TEST(PlanTrace, PlansForATrace) {
  const test::TempFile trace(trace_text());
  const std::string words = "--model Qwen2.5-0.5B --gpu 8GiB --percentile 90 --trace ";
  const json rows = planned(words + trace.path()).at("trace").at("rows");
  EXPECT_EQ(rows[0].at("tokens"), 5000);
  EXPECT_EQ(rows[1].at("tokens"), 9000);
  const json at = planned("--model Qwen2.5-0.5B --gpu 8GiB --context 9000");
  EXPECT_EQ(rows[1].at("max_batch"), at.at("max_batch"));
  EXPECT_EQ(plan(words + "/no/such/file").code, ExitCode::bad_input);
  EXPECT_EQ(plan(words + trace.path() + " --format azure").code, ExitCode::bad_input);
  EXPECT_EQ(plan(words + trace.path() + " --format mooncake").code, ExitCode::ok);
}

TEST(PlanTrace, TakesAHitRateIntoAccount) {
  const test::TempFile trace(trace_text());
  const std::string words =
      "--model Qwen2.5-0.5B --gpu 8GiB --percentile 90 --trace " + trace.path();
  const json plain = planned(words).at("trace");
  EXPECT_FALSE(plain.contains("hit_rate"));
  EXPECT_FALSE(plain.at("rows")[0].contains("cached_tokens"));
  const json with = planned(words + " --hit-rate 0.5").at("trace");
  EXPECT_EQ(with.at("hit_rate"), 0.5);
  EXPECT_EQ(with.at("hit_rate_unit"), "prompt tokens found / prompt tokens");
  EXPECT_EQ(with.at("prompt_tokens"), 505'000 - 100 * 50);
  EXPECT_EQ(with.at("computed_prompt_tokens"), 250'000);
  const json& row = with.at("rows")[1];
  EXPECT_EQ(row.at("tokens"), 9000);
  EXPECT_EQ(row.at("max_batch"), plain.at("rows")[1].at("max_batch")) << "where nothing is shared";
  EXPECT_EQ(row.at("cached_tokens"), 8950 / 2 / 16 * 16);
  const json rest = planned("--model Qwen2.5-0.5B --gpu 8GiB --context " +
                            std::to_string(9000 - 8950 / 2 / 16 * 16));
  EXPECT_EQ(row.at("max_batch_sharing"), rest.at("max_batch"));
  const json all = planned(words + " --hit-rate 1").at("trace").at("rows")[1];
  EXPECT_EQ(all.at("cached_tokens"), 8949 / 16 * 16) << "one token of a prompt is computed";
  const Outcome text = plan(words + " --hit-rate 0.5");
  EXPECT_TRUE(contains_all(text.out, {"hit rate 0.5 of prompt tokens: 250,000 of 500,000 need not",
                                      "4,464 of them cached: up to"}));
  for (const char* wrong : {" --hit-rate 1.5", " --hit-rate -0.1", " --hit-rate nan"}) {
    EXPECT_EQ(plan(words + wrong).code, ExitCode::usage) << wrong;
  }
  EXPECT_EQ(plan("--model Qwen2.5-0.5B --gpu 8GiB --hit-rate 0.5").code, ExitCode::usage);
}

TEST(PlanTrace, CountsNoHitsWhereARateDoesNotSayWhatTheyTake) {
  const test::TempFile trace(trace_text());
  const std::string words = "--model Gemma-3-27B --gpu H200-SXM --trace " + trace.path();
  const json with = planned(words + " --hit-rate 0.5");
  EXPECT_EQ(with.at("trace"), planned(words).at("trace"));
  EXPECT_TRUE(contains(plan(words + " --hit-rate 0.5").out,
                       "--hit-rate is not used: it does not say what windows"));
  const json full = planned(words + " --hit-rate 0.5 --retention full").at("trace");
  EXPECT_EQ(full.at("hit_rate"), 0.5);
  EXPECT_GT(full.at("rows")[1].at("max_batch_sharing"), full.at("rows")[1].at("max_batch"));
  const std::string states = "--model Qwen3.5-27B --gpu H200-SXM --hit-rate 0.5 --retention full";
  EXPECT_TRUE(contains(plan(states + " --trace " + trace.path()).out,
                       "--hit-rate is not used: it does not say what states"));
}

TEST(PlanTrace, SaysWhatLimitsATrace) {
  const test::TempFile trace(trace_text());
  const std::string words =
      "--model Phi-3-mini-4k-instruct,Llama-3.1-8B --gpu 20GiB,H200-SXM --trace " + trace.path();
  const json plans = planned(words).at("plans");
  const auto row = [&](std::size_t which, std::size_t at) {
    return plans[which].at("trace").at("rows")[at];
  };
  EXPECT_EQ(row(1, 0).at("limited_by"), "max_position") << "5,000 tokens of 4,096";
  EXPECT_EQ(row(1, 0).at("max_batch"), 0);
  EXPECT_EQ(row(3, 1).at("limited_by"), "kv_cache");
  EXPECT_GT(row(3, 1).at("max_batch"), 0);
  const Outcome text = plan(words);
  EXPECT_TRUE(
      contains_all(text.out, {"p50: 5,000       p95: 9,500  limited by", "0 max_position"}));
  EXPECT_TRUE(contains(plan("--model Phi-3-mini-4k-instruct --gpu L4 --trace " + trace.path()).out,
                       "percentile   50: 5,000 tokens, 0 at a time (limited by max_position)"));
}

}  // namespace
}  // namespace kvarena::tools
