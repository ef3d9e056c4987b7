// `kvarena pressure`: what it writes, its exit codes, its messages.

#include "scenarios/neighbour.hpp"
#include "tools/pressure/pressure_output.hpp"
#include "unit/tools/child_command.hpp"
#include "unit/tools/command_run.hpp"

#include "kvarena/base/version.hpp"
#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

namespace kvarena::tools {
namespace {

using nlohmann::ordered_json;
using scenarios::FigureTable;
using scenarios::RunEnd;
using scenarios::ScenarioReport;
using scenarios::SuiteOptions;
using scenarios::SuiteOutcome;

SuiteOptions some_options() {
  SuiteOptions options;
  options.model = scenarios::find_served_model("Phi-3-mini").value();
  return options;
}

PressureOrigin some_origin() {
  return {.started_utc = "2026-11-21T23:40:11Z", .driver_version = "580.159.04"};
}

SuiteOutcome some_outcome() {
  ScenarioReport good;
  good.name = "growth";
  good.title = "Memory while a sequence grows";
  good.add("bytes_per_token", std::int64_t{393'216});
  good.add("error", 0.25);
  good.add("in_use", std::string("weights: 1\nKV: 2"));
  good.add("memory", FigureTable{{"tokens", "tracked_bytes"}, {{0, 5'000}, {16, 6'000}}});
  good.expect_equal("bytes a token", 393'216, 393'216);
  ScenarioReport bad;
  bad.name = "leaks";
  bad.title = "Loading and unloading";
  bad.add("place", std::string("a|b"));
  bad.expect_equal("held", 1, 1);
  bad.expect_equal("free bytes", 100, 90);
  ScenarioReport skipped;
  skipped.name = "neighbours";
  skipped.skipped = "no process can be started";
  SuiteOutcome outcome;
  outcome.failure = {RunEnd::check_failed, {.found = "1 of 3 scenarios failed"}};
  outcome.has_report = true;
  outcome.report.model = "Phi-3-mini";
  outcome.report.device = "host";
  outcome.report.total_bytes = 1'000'000;
  outcome.report.free_bytes = 900'000;
  outcome.report.scenarios = {good, bad, skipped};
  return outcome;
}

TEST(PressureOutput, JsonHasOneObjectAScenario) {
  const ordered_json json = json_of(some_origin(), some_options(), some_outcome());
  EXPECT_EQ(json["schema_version"], 2);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["failure"], "1 of 3 scenarios failed");
  EXPECT_EQ(json["model"]["weights_bytes"], 7'642'159'104);
  ASSERT_EQ(json["scenarios"].size(), 3U);
  const auto& growth = json["scenarios"][0];
  EXPECT_EQ(growth["name"], "growth");
  EXPECT_EQ(growth["passed"], true);
  EXPECT_EQ(growth["figures"]["bytes_per_token"], 393'216);
  EXPECT_EQ(growth["figures"]["error"], 0.25);
  EXPECT_EQ(growth["figures"]["memory"][1]["tracked_bytes"], 6'000);
  EXPECT_EQ(growth["checks"][0]["held"], true);
  EXPECT_EQ(json["scenarios"][1]["passed"], false);
  EXPECT_EQ(json["scenarios"][1]["checks"][1]["seen"], "90");
  EXPECT_TRUE(json["scenarios"][2]["passed"].is_null());
  EXPECT_EQ(json["scenarios"][2]["skipped"], "no process can be started");
}

TEST(PressureOutput, MarkdownShowsFiguresTablesAndWhatDidNotHold) {
  const std::string text = markdown_of(some_origin(), some_options(), some_outcome());
  EXPECT_TRUE(text.starts_with("# Memory pressure: Phi-3-mini on host\n")) << text;
  EXPECT_TRUE(contains_all(
      text, {"| bytes_per_token | 393,216 |", "| tokens | tracked_bytes |\n| ---: | ---: |\n",
             "| 16 | 6,000 |", "| place | a\\|b |", "| free bytes | 100 | 90 | **no** |",
             "| held | 1 | 1 | yes |", "| in_use | weights: 1<br>KV: 2 |",
             "free bytes: expected 100, seen 90", "Skipped: no process can be started"}));
}

TEST(PressureOutput, SummaryNamesTheFirstCheckThatDidNotHold) {
  TestConsole test;
  const std::string text = summary_of(test.console, test.out, some_outcome().report);
  EXPECT_TRUE(
      contains_all(text, {"growth               passed", "leaks                FAILED",
                          "free bytes: expected 100, seen 90", "no process can be started"}));
}

TEST(PressureOutput, AScenarioThatEndedEarlySaysWhyAndWhatToDo) {
  SuiteOutcome outcome = some_outcome();
  outcome.report.scenarios[0].ended = scenarios::Failure{RunEnd::does_not_fit,
                                                         {.found = "no room for weights",
                                                          .expected = "room for them",
                                                          .advice = "give more with --memory"}};
  const ordered_json json = json_of(some_origin(), some_options(), outcome);
  EXPECT_EQ(json["scenarios"][0]["passed"], false) << "although every check held";
  EXPECT_EQ(json["scenarios"][0]["ended"]["end"], "does_not_fit");
  EXPECT_EQ(json["scenarios"][0]["ended"]["advice"], "give more with --memory");
  EXPECT_TRUE(json["scenarios"][1]["ended"].is_null());
  const std::string text = markdown_of(some_origin(), some_options(), outcome);
  EXPECT_TRUE(contains_all(
      text, {"| [growth](#growth-failed) | FAILED |", "| ended early: no room for weights |",
             "\n## growth: FAILED\n", "\nEnded early (does_not_fit): no room for weights\n",
             "\nExpected: room for them\n", "\nTo do: give more with --memory\n"}));
}

TEST(PressureOutput, AnInterruptedRunIsMarkedAsSuch) {
  SuiteOutcome outcome = some_outcome();
  outcome.failure = {RunEnd::interrupted, {.found = "interrupted after 2 of 4 scenarios"}};
  outcome.report.scenarios[1].ended = scenarios::interruption();
  outcome.report.not_run = {"concurrency"};
  const ordered_json json = json_of(some_origin(), some_options(), outcome);
  EXPECT_EQ(json["interrupted"], true);
  EXPECT_EQ(json["not_run"], ordered_json::array({"concurrency"}));
  EXPECT_EQ(json["scenarios"][0]["passed"], true);
  EXPECT_TRUE(json["scenarios"][1]["passed"].is_null());
  EXPECT_EQ(json["scenarios"][1]["ended"]["end"], "interrupted");
  const std::string text = markdown_of(some_origin(), some_options(), outcome);
  EXPECT_TRUE(contains_all(text, {"**interrupted after 2 of 4 scenarios.** Not run: concurrency.\n",
                                  "| [leaks](#leaks-interrupted) | interrupted | "}));
}

TEST(PressureOutput, ReportsAreWrittenWholeAndReplaceOlderOnes) {
  TestConsole test;
  const ConfigWorld folder;
  const std::string inner = folder.path("out/a/b");
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(write_reports(test.console, inner, some_origin(), some_options(), some_outcome()),
              ExitCode::ok);
  }
  EXPECT_EQ(folder.read("out/a/b/report.md"),
            markdown_of(some_origin(), some_options(), some_outcome()));
  EXPECT_EQ(ordered_json::parse(folder.read("out/a/b/report.json")),
            json_of(some_origin(), some_options(), some_outcome()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(inner), {}), 2);
  EXPECT_EQ(test.err.str(), "");
}

TEST(PressureOutput, BytesThatAreNoUtf8AreReplaced) {
  TestConsole test;
  const ConfigWorld folder;
  SuiteOutcome outcome = some_outcome();
  outcome.report.device = "host \xff";
  EXPECT_EQ(write_reports(test.console, folder.path("out"), some_origin(), some_options(), outcome),
            ExitCode::ok);
  const ordered_json json = ordered_json::parse(folder.read("out/report.json"));
  EXPECT_EQ(json["device"], "host \ufffd");
}

TEST(PressureOutput, AFolderThatCannotBeMadeIsTheEnvironment) {
  TestConsole test;
  EXPECT_EQ(
      write_reports(test.console, "/dev/null/x", some_origin(), some_options(), some_outcome()),
      ExitCode::environment);
  EXPECT_TRUE(contains(test.err.str(), "--out /dev/null/x"));
  EXPECT_EQ(write_reports(test.console, "", some_origin(), some_options(), some_outcome()),
            ExitCode::ok);
}

TEST(PressureOutput, SaysWhereItComesFrom) {
  SuiteOptions options = some_options();
  PressureOrigin origin = some_origin();
  const ordered_json given_nothing = json_of(origin, options, some_outcome());
  EXPECT_EQ(given_nothing["kvarena_version"], KVARENA_VERSION_STRING);
  EXPECT_EQ(given_nothing["started_utc"], "2026-11-21T23:40:11Z");
  EXPECT_EQ(given_nothing["driver_version"], "580.159.04");
  EXPECT_EQ(given_nothing["device"], "host");
  EXPECT_EQ(given_nothing["total_bytes"], 1'000'000);
  EXPECT_TRUE(given_nothing["memory_bytes"].is_null());
  const std::string version = "kvarena " KVARENA_VERSION_STRING;
  EXPECT_TRUE(contains(markdown_of(origin, options, some_outcome()),
                       "\n" + version +
                           "; driver 580.159.04; `--memory` not given; `--seed 1`; begun "
                           "2026-11-21T23:40:11Z.\n"));
  options.memory_bytes = 12'000;
  origin.driver_version.clear();
  const ordered_json json = json_of(origin, options, some_outcome());
  EXPECT_EQ(json["memory_bytes"], 12'000);
  EXPECT_TRUE(json["driver_version"].is_null());
  EXPECT_TRUE(contains(markdown_of(origin, options, some_outcome()),
                       version + "; driver none; `--memory` 12,000 bytes;"));
}

TEST(PressureOutput, TheOriginOfAHostRunIsATimeWithoutADriver) {
  const auto host = HostDevice::create();
  ASSERT_TRUE(host);
  const PressureOrigin origin = origin_now(**host);
  EXPECT_EQ(origin.driver_version, "");
  EXPECT_EQ(origin.started_utc.size(), some_origin().started_utc.size());
  EXPECT_TRUE(origin.started_utc.starts_with("20") && origin.started_utc.ends_with("Z"))
      << origin.started_utc;
}

/// What the scenarios below take of the machine, beside other tests.
bool has_free_memory() {
  return system_memory_source().available_bytes() >= std::uint64_t{3} << 30;
}

TEST(PressureCommand, WrongUsageIsExitCodeTwo) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"pressure", "--scenario", "grwoth"},
        {"pressure", "--model", "GPT-9"},
        {"pressure", "--memory", "much"},
        {"pressure", "--device", "gpu"}}) {
    const auto outcome = run(arguments);
    EXPECT_EQ(outcome.code, ExitCode::usage) << testing::PrintToString(arguments);
    EXPECT_TRUE(outcome.err.starts_with("error: ")) << outcome.err;
  }
}

TEST(PressureCommand, TooLittleMemoryIsExitCodeThreeWithBothNumbers) {
  if (!has_free_memory()) GTEST_SKIP() << "less than 3 GiB";
  const auto outcome = run_line("pressure --device cpu --memory 1GiB --json -");
  EXPECT_EQ(outcome.code, ExitCode::does_not_fit);
  EXPECT_EQ(ordered_json::parse(outcome.out).at("exit_code"), 3);
  EXPECT_TRUE(contains(outcome.err, "--memory leaves 1073741824 bytes (1.00 GiB)"));
  // Weights, the blocks of one context and one more, and a workspace a core.
  const std::int64_t blocks = 7'642'159'104 + 257LL * 16 * 393'216;
  constexpr std::string_view kAdvice = "give --memory ";
  const std::size_t advice = outcome.err.find(kAdvice);
  ASSERT_NE(advice, std::string::npos) << outcome.err;
  const std::int64_t enough = std::stoll(outcome.err.substr(advice + kAdvice.size())) << 20;
  EXPECT_GT(enough, blocks);
  EXPECT_LT(enough, blocks + (256 << 20));
}

TEST(PressureCommand, WhatCannotBeWrittenIsRefusedBeforeAnythingRuns) {
  const ConfigWorld folder;
  const std::string inside = folder.path("out/new");
  const struct {
    std::vector<std::string> arguments;
    const char* said;
  } cases[] = {{{"--out", "/proc/kvarena"}, "--out /proc/kvarena"},
               {{"--json", "/proc/kvarena.json"}, "--json /proc/kvarena.json"},
               {{"--out", inside, "--json", "/proc/kvarena.json"}, "--json /proc/kvarena.json"},
               {{"--json", "/tmp"}, "--json /tmp"}};
  for (const auto& [given, said] : cases) {
    std::vector<std::string> arguments{"pressure", "--device", "cpu",
                                       "--memory", "1536MiB",  "--scenario",
                                       "growth",   "--model",  "Qwen2.5-0.5B"};
    arguments.insert(arguments.end(), given.begin(), given.end());
    const auto outcome = run(arguments);
    EXPECT_TRUE(ended(outcome, ExitCode::environment, {said})) << said;
    EXPECT_FALSE(contains(outcome.err, "growth: ")) << "it ran:\n";
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

TEST(PressureCommand, ARunWithoutAReportLeavesNoFolder) {
  const ConfigWorld folder;
  const auto outcome = run({"pressure", "--device", "cpu", "--memory", "1GiB", "--out",
                            folder.path("out/a/b"), "--json", folder.path("out/a/b/again.json")});
  EXPECT_EQ(outcome.code, ExitCode::does_not_fit) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

TEST(PressureCommand, MoreThanTheMachineHasIsExitCodeThree) {
  const auto outcome = run_line("pressure --device cpu --memory 200TiB");
  EXPECT_EQ(outcome.code, ExitCode::does_not_fit);
  EXPECT_NE(outcome.err.find("bytes available"), std::string::npos) << outcome.err;
}

TEST(PressureCommand, AnInterruptedRunWritesWhatItHas) {
  if (!has_free_memory()) GTEST_SKIP() << "less than 3 GiB";
  const ConfigWorld folder;
  std::filesystem::create_directory(folder.path("out"));
  folder.write("out/report.md", "of an earlier run");
  ChildCommand child({"pressure", "--device", "cpu", "--memory", "1536MiB", "--model",
                      "Qwen2.5-0.5B", "--scenario", "growth", "--scenario", "long-generation",
                      "--out", folder.path("out")});
  ASSERT_NE(child.wait_for("long-generation: "), "");
  EXPECT_EQ(folder.read("out/report.md"), "of an earlier run");
  EXPECT_EQ(child.end(SIGINT), static_cast<int>(ExitCode::interrupted));
  const ordered_json json = ordered_json::parse(folder.read("out/report.json"));
  EXPECT_EQ(json["interrupted"], true);
  ASSERT_EQ(json["scenarios"].size(), 2U);
  EXPECT_EQ(json["scenarios"][0]["passed"], true);
  EXPECT_EQ(json["scenarios"][1]["ended"]["end"], "interrupted");
  EXPECT_TRUE(contains(folder.read("out/report.md"), "interrupted after 1 of 2"));
}

TEST(PressureCommand, OneScenarioForReal) {
  if (!has_free_memory()) GTEST_SKIP() << "less than 3 GiB";
  const ConfigWorld folder;
  const auto outcome =
      run({"pressure", "--device", "cpu", "--memory", "1536MiB", "--model", "Qwen2.5-0.5B",
           "--scenario", "growth", "--out", folder.path("out"), "--json", "-"});
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const ordered_json json = ordered_json::parse(outcome.out);
  ASSERT_EQ(json["scenarios"].size(), 1U);
  EXPECT_EQ(json["scenarios"][0]["figures"]["bytes_per_token"], 12'288);
  EXPECT_EQ(json["total_bytes"], std::int64_t{1536} << 20);
  EXPECT_EQ(json["memory_bytes"], std::int64_t{1536} << 20);
  EXPECT_TRUE(json["started_utc"].is_string());
  EXPECT_EQ(ordered_json::parse(folder.read("out/report.json")), json);
  EXPECT_TRUE(contains(outcome.err, "growth: passed"));
}

TEST(PressureNeighbourCommand, TakesFreesAndQuits) {
  std::unique_ptr<scenarios::Neighbour> neighbour;
  const auto failed = scenarios::Neighbour::start(
      {KVARENA_PROGRAM, "pressure-neighbour", "--device", "cpu"}, &neighbour);
  ASSERT_FALSE(failed) << failed->why.found;
  EXPECT_FALSE(contains(run({"--help"}).out, "pressure-neighbour")) << "not for people";
  EXPECT_FALSE(neighbour->take(1 << 20));
  EXPECT_FALSE(neighbour->free());
  EXPECT_FALSE(neighbour->quit());
}

}  // namespace
}  // namespace kvarena::tools
