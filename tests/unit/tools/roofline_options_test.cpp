// The roofline clock through the command.

#include "unit/replay/trace_text.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace kvarena::tools {
namespace {

std::vector<std::string> roofline(const std::string& trace, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"replay",  trace,          "--clock", "roofline",
                                        "--model", "Llama-3.1-8B", "--json",  "-"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(RooflineOptions, AFasterGpuEndsEarlier) {
  const test::TempFile trace(test::mooncake_trace({{0, 1000, 50}, {10, 600, 20}}));
  const auto slow = run(roofline(trace.path(), {"--gpu", "l4"}));
  const auto fast = run(roofline(trace.path(), {"--gpu", "H200-SXM"}));
  ASSERT_EQ(slow.code, ExitCode::ok) << slow.err;
  ASSERT_EQ(fast.code, ExitCode::ok) << fast.err;
  const auto slow_json = nlohmann::json::parse(slow.out);
  const auto fast_json = nlohmann::json::parse(fast.out);
  EXPECT_GT(slow_json.at("virtual_us"), 10 * fast_json.at("virtual_us").get<std::int64_t>());
  const auto& numbers = fast_json.at("options").at("roofline");
  EXPECT_EQ(numbers.at("bandwidth_bytes_per_second"), 4'800'000'000'000);
  EXPECT_EQ(numbers.at("efficiency_bandwidth"), 0.8);
}

TEST(RooflineOptions, EfficienciesCount) {
  const test::TempFile trace(test::mooncake_trace({{0, 10, 100}}));
  const auto whole = run(roofline(trace.path(), {"--gpu", "A10", "--efficiency-bandwidth", "1"}));
  const auto half = run(roofline(trace.path(), {"--gpu", "A10", "--efficiency-bandwidth", "0.5"}));
  const double ratio = nlohmann::json::parse(half.out).at("virtual_us").get<double>() /
                       nlohmann::json::parse(whole.out).at("virtual_us").get<double>();
  EXPECT_NEAR(ratio, 2.0, 0.001);
}

TEST(RooflineOptions, OtherClocksShowNone) {
  const test::TempFile trace(test::mooncake_trace({{0, 10, 1}}));
  const auto plain = run({"replay", trace.path(), "--json", "-"});
  const auto options = nlohmann::json::parse(plain.out).at("options");
  EXPECT_TRUE(options.at("roofline").is_null());
  EXPECT_EQ(options.at("preempted"), "drop");
}

TEST(RooflineOptions, WhatCannotBeIsSaid) {
  const test::TempFile trace(test::mooncake_trace({{0, 10, 1}}));
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"--gpu", "H300"},
      {"--gpu", "H200-SXM", "--prefill-us", "10"},
      {"--gpu", "H200-SXM", "--efficiency-matrices", "1.5"},
      {"--gpu", "H200-SXM", "--efficiency-attention", "0"},
      {"--gpu", "H200-SXM", "--layers", "3"},
  };
  for (const auto& arguments : wrong) {
    const auto outcome = run(roofline(trace.path(), arguments));
    EXPECT_EQ(outcome.code, ExitCode::usage) << testing::PrintToString(arguments);
    EXPECT_TRUE(contains(outcome.err, "error: ")) << outcome.err;
    EXPECT_FALSE(nlohmann::json::parse(outcome.out).at("ok")) << testing::PrintToString(arguments);
  }
  EXPECT_EQ(run({"replay", trace.path(), "--gpu", "H200-SXM"}).code, ExitCode::usage)
      << "a GPU for a clock that needs none";
}

}  // namespace
}  // namespace kvarena::tools
