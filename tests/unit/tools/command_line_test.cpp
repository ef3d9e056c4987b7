// The command as a person or a script sees it: what goes to which stream, exit codes, messages.

#include "unit/replay/trace_text.hpp"
#include "unit/tools/command_run.hpp"

#include "kvarena/base/version.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace kvarena::tools {
namespace {

using nlohmann::json;
using test::TempFile;

std::string small_trace() {
  return test::mooncake_trace({{0, 100, 5}, {10, 600, 20}, {20, 50, 40}});
}

/// `kvarena replay` of the small trace with `options`.
Outcome replay(const std::string& options = "") {
  static const TempFile trace(small_trace());
  return run_line("replay " + trace.path() + " " + options);
}

// ---- the command itself ------------------------------------------------------------------------

TEST(CommandLine, VersionAndHelpGoToStandardOutput) {
  const auto version = run({"--version"});
  EXPECT_EQ(version.code, ExitCode::ok);
  EXPECT_EQ(version.out, "kvarena " KVARENA_VERSION_STRING "\n");
  EXPECT_EQ(version.err, "");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"replay", "--help"}, {"shapes", "-h"}}) {
    const auto help = run(arguments);
    EXPECT_EQ(help.code, ExitCode::ok);
    EXPECT_TRUE(contains(help.out, "Examples:"));
    EXPECT_EQ(help.err, "");
  }
}

TEST(CommandLine, WrongUsageIsExitCodeTwoAndSaysWhatIsWrong) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"", "'kvarena' needs a command"},
      {"replay", "TRACE is required"},
      {"replay x --clock sundial", "--clock: sundial not in {step,roofline,linear}"},
      {"replay x --block-size 0", "--block-size: Value 0 not in range 1 to 65536"},
      {"replay x --block-size sixteen", "--block-size: Value sixteen not in range 1 to 65536"},
      {"replay x --blocks 0", "--blocks: \"0\" is no number of blocks"},
      {"replay x --blocks many", "--blocks: \"many\""},
      {"replay x --blocks 10GiB", "--blocks: \"10GiB\""},
      {"replay x --blocks 10 --pool-bytes 1GiB", "--blocks excludes --pool-bytes"},
      {"replay x --pool-bytes 1gig", "--pool-bytes: \"1gig\" is no size of 1 B or more"},
      {"replay x --pool-bytes 0", "\"0\" is no size of 1 B or more"},
      {"replay x --prefill-us -1", "--prefill-us: \"-1\" is not a time"},
      {"replay x --prefill-us fast", "--prefill-us: \"fast\" is not a time"},
      {"replay x --watermark 101%", "--watermark: \"101%\""},
      {"replay x --model GPT-9", "no built-in model shape is called \"GPT-9\""},
      {"replay x --q-heads 3", "3 query heads over 2 KV heads"},
      {"replay x --samples 0", "--samples: Value 0 not in range 1"},
      {"replay x --device gpu", "--device: \"gpu\" is no device"},
      {"replay x --device cuda:0 --attention off", "--device"},
      {"shapes GPT-9", "no built-in model is called \"GPT-9\""},
      {"shapes --layers 3", "--kv-heads, --head-dim missing"},
      {"shapes --pool-bytes 1GiB", "--pool-bytes and --context need a shape"},
      {"shapes Llama-3.1-8B --dtype f64", "--dtype: f64 not in {f32,"},
  };
  for (const auto& [arguments, happened] : wrong) {
    const auto outcome = run_line(arguments);
    EXPECT_EQ(outcome.code, ExitCode::usage) << arguments;
    EXPECT_TRUE(outcome.err.starts_with("error: ")) << outcome.err;
    const std::string first = outcome.err.substr(0, outcome.err.find('\n'));
    EXPECT_TRUE(contains(first, happened)) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_TRUE(contains(run_line("replay x --clock sundial").err, "'kvarena replay --help'"));
}

TEST(CommandLine, SizesWithAFractionOfAByteAreTakenAndSaidSo) {
  const auto outcome = run_line("shapes Llama-3.1-8B --pool-bytes 79.18gib");
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  EXPECT_EQ(outcome.err, "--pool-bytes 79.18gib is rounded down to 85,018,877,624 B\n");
  EXPECT_EQ(run_line("shapes Llama-3.1-8B --pool-bytes 1.5GiB").err, "");
}

TEST(CommandLine, ColoursOnlyOnTerminalsThatWantThem) {
  EXPECT_FALSE(contains(run_line("shapes Llama-3.1-8B").out, "\x1b"));
  EXPECT_TRUE(contains(run({"shapes", "Llama-3.1-8B"}, true).out, "\x1b[1m"));
  EXPECT_FALSE(contains(run({"--no-color", "shapes", "Llama-3.1-8B"}, true).out, "\x1b"));
  EXPECT_FALSE(contains(run({"shapes", "Llama-3.1-8B", "--no-color"}, true).out, "\x1b"));
  EXPECT_TRUE(contains(run({"shapes", "GPT-9"}, true).err, "\x1b"));
}

// ---- devices -----------------------------------------------------------------------------------

TEST(DevicesCommand, ListsTheHostAndSaysWhyThereIsNoGpu) {
  const auto outcome = run({"devices"});
  EXPECT_EQ(outcome.code, ExitCode::ok);
  EXPECT_TRUE(contains(outcome.out, "\nhost "));
  EXPECT_EQ(contains(outcome.out, "No GPU: "), !contains(outcome.out, "\ncuda:0 ")) << outcome.out;
  EXPECT_EQ(outcome.err, "");
}

TEST(DevicesCommand, JsonGoesToStandardOutputUnlessAFileIsNamed) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"devices", "--json"}, {"devices", "--json", "-"}}) {
    const auto outcome = run(arguments);
    EXPECT_EQ(outcome.code, ExitCode::ok);
    const auto list = json::parse(outcome.out);
    EXPECT_EQ(list.at("devices").at(0).at("device"), "host");
    EXPECT_GT(list.at("devices").at(0).at("total_bytes"), 0);
    EXPECT_TRUE(list.at("cuda_built").is_boolean());
    for (const auto& device : list.at("devices")) {
      EXPECT_EQ(device.at("used_bytes").get<std::uint64_t>(),
                device.at("total_bytes").get<std::uint64_t>() -
                    device.at("free_bytes").get<std::uint64_t>());
      if (device.at("kind") == "host") continue;
      EXPECT_TRUE(device.at("integrated").is_boolean());
      EXPECT_TRUE(device.at("nvml").is_null() || device.at("nvml").at("processes").is_array());
    }
    EXPECT_EQ(list.at("cuda_error").is_null(), list.at("devices").size() > 1);
  }
  const TempFile file("");
  EXPECT_TRUE(contains(run({"devices", "--json", file.path()}).out, "host"));
  std::ifstream written(file.path());
  EXPECT_EQ(json::parse(written).at("devices").at(0).at("kind"), "host");
  EXPECT_EQ(run_line("devices --json /nonexistent/x").code, ExitCode::environment);
  EXPECT_EQ(run_line("devices cuda:0").code, ExitCode::usage);
}

// ---- replay ------------------------------------------------------------------------------------

TEST(ReplayCommand, SummaryIsDataForPeople) {
  const TempFile trace(small_trace());
  const auto outcome = replay("--blocks 100");
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  EXPECT_TRUE(contains_all(outcome.out, {"requests", "3 served, of 3", "queueing", "preemptions",
                                         "waste", "balanced", "in use", "attention      off"}));
  EXPECT_TRUE(contains(outcome.err, "replayed in"));
  const auto quiet = run({"--quiet", "replay", trace.path(), "--blocks", "100"});
  EXPECT_EQ(quiet.out, "");
  EXPECT_EQ(quiet.err, "");
}

TEST(ReplayCommand, JsonOnStandardOutputStandsAlone) {
  const auto outcome = replay(
      "--reserve full --blocks unlimited --clock linear --prefill-us 100 --decode-us 20000 --json "
      "-");
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const auto object = json::parse(outcome.out);
  EXPECT_TRUE(object.is_object());
  EXPECT_EQ(object.at("requests"), 3);
  EXPECT_EQ(object.at("input_tokens"), 750);
  EXPECT_EQ(object.at("output_tokens"), 65);
  EXPECT_EQ(object.at("peak_blocks"), 7 + 39 + 6);
  EXPECT_EQ(object.at("peak_requests"), 3);
  EXPECT_EQ(object.at("final_blocks"), 52);
  EXPECT_GT(object.at("time_mean_blocks").get<double>(), 0.0);
  EXPECT_NEAR(object.at("waste").get<double>(), 1.0 - 815.0 / 832.0, 1e-12);
  EXPECT_EQ(object.at("preemptions"), 0);
  EXPECT_EQ(object.at("balanced"), true);
  EXPECT_TRUE(contains(outcome.err, "balanced")) << "the summary moves to standard error";
}

TEST(ReplayCommand, JsonFileHasTheSameFigures) {
  const TempFile file("old content");
  const auto outcome = replay("--quiet --json " + file.path());
  EXPECT_EQ(outcome.code, ExitCode::ok);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(file.content(), replay("--json -").out) << "and two runs give the same bytes";
  EXPECT_EQ(replay("--json /nonexistent/x.json").code, ExitCode::environment);
}

TEST(CommandLine, WhatCannotBeWrittenIsRefusedBeforeAnythingRuns) {
  const TempFile trace(small_trace());
  const std::vector<std::vector<std::string>> commands{
      {"bench", "attention", "--device", "cpu", "--json"},
      {"replay", trace.path(), "--json"},
      {"replay", trace.path(), "--timeline"},
      {"replay", trace.path(), "--request-times"}};
  for (auto given : commands) {
    const std::string option = given.back();
    given.push_back("/proc/kvarena.out");
    const auto outcome = run(given);
    EXPECT_TRUE(ended(outcome, ExitCode::environment, {option + " /proc/kvarena.out: "}));
    EXPECT_EQ(outcome.err.rfind("error: "), 0U) << "one error: " << outcome.err;
    EXPECT_EQ(outcome.out, "") << "it ran";
  }
}

TEST(CommandLine, AnEmptyNameOfAFileIsRefused) {
  const TempFile trace(small_trace());
  for (const char* option : {"--json", "--timeline", "--request-times"}) {
    EXPECT_TRUE(ended(run({"replay", trace.path(), option, ""}), ExitCode::usage,
                      {"error: " + std::string(option) + ": an empty name"}));
  }
  EXPECT_TRUE(ended(run({"pressure", "--out", ""}), ExitCode::usage, {"--out: an empty name"}));
}

TEST(CommandLine, OneFileForTwoThingsIsRefusedBeforeAnythingRuns) {
  const ConfigWorld world;
  const std::string trace = world.write("trace.jsonl", small_trace());
  const std::string file = world.path("file");
  std::filesystem::create_symlink("file", world.path("link"));
  const auto replay_with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"replay", trace});
    return world.run(more);
  };
  const std::string dotted = world.path("work/../file");
  EXPECT_TRUE(ended(replay_with({"--timeline", file, "--request-times", file}), ExitCode::usage,
                    {"--timeline " + file + " and --request-times " + file + " are the same"}));
  EXPECT_TRUE(ended(replay_with({"--json", file, "--timeline", dotted}), ExitCode::usage,
                    {"--json " + file + " and --timeline " + dotted}));
  EXPECT_TRUE(ended(replay_with({"--json", world.path("link"), "--timeline", file}),
                    ExitCode::usage, {"are the same file"}));
  EXPECT_TRUE(ended(replay_with({"--json", "-", "--timeline", "-"}), ExitCode::usage,
                    {"--json - and --timeline - are the same file"}));
  EXPECT_TRUE(ended(replay_with({"--json", trace, "--q-heads", "3"}), ExitCode::usage,
                    {"and the trace " + trace}));
  EXPECT_TRUE(ended(
      world.run({"pressure", "--out", world.path("out"), "--json", world.path("out/report.json")}),
      ExitCode::usage, {"--json ", " and --out "}));
  EXPECT_TRUE(ended(world.run({"bench", "attention", "--lengths", trace, "--json", trace}),
                    ExitCode::usage, {"and --lengths"}));
  EXPECT_TRUE(
      ended(world.run({"shapes", trace, "--json", trace}), ExitCode::usage, {"and the model"}));
  EXPECT_EQ(replay_with({"--json", "/dev/null", "--timeline", "/dev/null"}).code, ExitCode::ok);
  EXPECT_EQ(world.read("trace.jsonl"), small_trace());
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_FALSE(std::filesystem::exists(world.path("out")));
}

TEST(ReplayCommand, ExitCodesTellWhy) {
  EXPECT_EQ(run_line("replay /nonexistent").code, ExitCode::bad_input);
  const TempFile broken(small_trace() + "{\"timestamp\": x}\n");
  const auto bad = run({"replay", broken.path()});
  EXPECT_EQ(bad.code, ExitCode::bad_input);
  EXPECT_EQ(bad.out, "");
  EXPECT_TRUE(contains_all(bad.err, {broken.path() + ":4:", "expected: ", "to do: "}));
  EXPECT_EQ(replay("--pool-bytes 1KiB").code, ExitCode::does_not_fit);
  EXPECT_EQ(replay("--clock linear --samples 2").code, ExitCode::usage);
  const auto huge = replay("--attention sample --model Llama-3.1-405B --blocks 100000000");
  EXPECT_EQ(huge.code, ExitCode::does_not_fit) << huge.err;
}

TEST(ReplayCommand, RejectedRequestsAreAWarning) {
  EXPECT_TRUE(ended(replay("--max-context 300 --quiet"), ExitCode::ok,
                    {"warning: 1 of 3 requests were rejected"}));
}

TEST(ReplayCommand, AReplayThatServesNobodyFailsAndHasNoPercentiles) {
  const auto outcome = replay("--max-context 10 --json -");
  EXPECT_TRUE(
      ended(outcome, ExitCode::check_failed,
            {"all 3 requests were rejected; the first, request 0: ", "past the context of 10"}));
  EXPECT_FALSE(contains(outcome.err, "median"));
  const auto object = json::parse(outcome.out);
  EXPECT_EQ(object.at("ok"), false);
  EXPECT_TRUE(object.at("queueing").is_null());
  EXPECT_TRUE(object.at("latency").is_null());
}

TEST(ReplayCommand, OneOutputGoesToStandardOutput) {
  const auto series = replay("--timeline -");
  EXPECT_EQ(series.code, ExitCode::ok) << series.err;
  EXPECT_TRUE(series.out.starts_with("time_s,running,")) << series.out;
  EXPECT_FALSE(contains(series.out, "balanced")) << "the summary moves to standard error";
  EXPECT_TRUE(contains(series.err, "balanced"));
  EXPECT_EQ(replay("--timeline - --json -").code, ExitCode::usage);
}

TEST(ReplayCommand, APipeNeedsASizeOfThePool) {
  const std::string path = std::filesystem::temp_directory_path() / "kvarena-test-fifo-0";
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::jthread writer([&path] { std::ofstream(path) << small_trace(); });
  EXPECT_TRUE(ended(run({"replay", path}), ExitCode::usage, {"can be read only once"}));
  std::filesystem::remove(path);
}

TEST(ReplayCommand, AttentionThroughTheCommand) {
  const auto seen = parsed(replay("--attention full --layers 2 --kv-heads 1 --q-heads 2 --head-dim "
                                  "16 --blocks 80 --samples 2 --json -"))
                        .at("verification");
  EXPECT_EQ(seen.at("failures"), 0);
  EXPECT_GT(seen.at("attention_rows"), 0);
  EXPECT_GT(seen.at("kv_bytes_compared"), 0);
}

/// A replay with attention of a small model on `device`.
Outcome replay_on(const std::string& device) {
  return replay(
      "--attention full --layers 2 --kv-heads 1 --q-heads 2 --head-dim 16 --blocks 80 --json - "
      "--device " +
      device);
}

TEST(ReplayCommand, TheDeviceIsTheOneNamed) {
  const auto cpu = replay_on("cpu");
  EXPECT_EQ(cpu.code, ExitCode::ok) << cpu.err;
  EXPECT_FALSE(contains(cpu.err, "warning"));
  EXPECT_TRUE(json::parse(cpu.out).at("measured").is_null());
  const auto none = replay_on("cuda:1000");
  EXPECT_EQ(none.code, ExitCode::environment);
  EXPECT_EQ(json::parse(none.out).at("ok"), false);
  EXPECT_TRUE(contains(none.err, "--device cuda:1000"));
  // Nothing runs on a device without attention: nobody is warned that there is no GPU.
  EXPECT_FALSE(contains(replay("--device auto").err, "warning"));
}

TEST(ReplayCommand, AutoTakesTheGpuOrWarnsInOneLine) {
  const auto outcome = replay_on("auto");
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const auto measured = json::parse(outcome.out).at("measured");
  if (list_devices().devices.empty()) {
    EXPECT_TRUE(outcome.err.starts_with("warning: --device auto: no GPU")) << outcome.err;
    EXPECT_TRUE(measured.is_null());
    return;
  }
  EXPECT_FALSE(contains(outcome.err, "warning"));
  EXPECT_TRUE(measured.at("device").get<std::string>().starts_with("cuda:0 "));
  EXPECT_GT(measured.at("decode_steps"), 0);
  EXPECT_GT(measured.at("decode_gb_per_s").get<double>(), 0.0);
}

TEST(ReplayCommand, ProgressIsDrawnOnTerminalsOnly) {
  // Long enough for a few redraws is not needed: what is drawn is erased again.
  EXPECT_FALSE(contains(replay().err, "\r"));
}

// ---- the roofline clock ------------------------------------------------------------------------

/// A replay of the trace by the roofline clock with `options`, as JSON.
Outcome roofline(const TempFile& trace, const std::string& options) {
  return run_line("replay " + trace.path() + " --clock roofline --model Llama-3.1-8B --json - " +
                  options);
}

TEST(RooflineOptions, AFasterGpuEndsEarlier) {
  const TempFile trace(test::mooncake_trace({{0, 1000, 50}, {10, 600, 20}}));
  const json slow = parsed(roofline(trace, "--gpu l4"));
  const json fast = parsed(roofline(trace, "--gpu H200-SXM"));
  EXPECT_GT(slow.at("virtual_us"), 10 * fast.at("virtual_us").get<std::int64_t>());
  const json& numbers = fast.at("options").at("roofline");
  EXPECT_EQ(numbers.at("bandwidth_bytes_per_second"), 4'800'000'000'000);
  EXPECT_EQ(numbers.at("efficiency_bandwidth"), 0.8);
}

TEST(RooflineOptions, EfficienciesCount) {
  const TempFile trace(test::mooncake_trace({{0, 10, 100}}));
  const auto virtual_us = [&](const char* share) {
    return parsed(roofline(trace, std::string("--gpu A10 --efficiency-bandwidth ") + share))
        .at("virtual_us")
        .get<double>();
  };
  EXPECT_NEAR(virtual_us("0.5") / virtual_us("1"), 2.0, 0.001);
}

TEST(RooflineOptions, OtherClocksShowNone) {
  const TempFile trace(test::mooncake_trace({{0, 10, 1}}));
  const auto plain = run({"replay", trace.path(), "--json", "-"});
  const auto options = json::parse(plain.out).at("options");
  EXPECT_TRUE(options.at("roofline").is_null());
  EXPECT_EQ(options.at("preempted"), "drop");
}

TEST(RooflineOptions, WhatCannotBeIsSaid) {
  const TempFile trace(test::mooncake_trace({{0, 10, 1}}));
  for (const std::string& options :
       texts("", "--gpu H300", "--gpu H200-SXM --prefill-us 10",
             "--gpu H200-SXM --efficiency-matrices 1.5", "--gpu H200-SXM --efficiency-attention 0",
             "--gpu H200-SXM --layers 3")) {
    const auto outcome = roofline(trace, options);
    EXPECT_TRUE(ended(outcome, ExitCode::usage, {"error: "})) << options;
    EXPECT_FALSE(json::parse(outcome.out).at("ok")) << options;
  }
  EXPECT_EQ(run({"replay", trace.path(), "--gpu", "H200-SXM"}).code, ExitCode::usage)
      << "a GPU for a clock that needs none";
}

}  // namespace
}  // namespace kvarena::tools
