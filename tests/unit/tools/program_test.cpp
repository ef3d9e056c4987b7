// The program as a process: exit codes, what happens to its output, its terminal and its signals.

#include "support/test_files.hpp"
#include "unit/replay/trace_text.hpp"
#include "unit/tools/child_command.hpp"

#include "tools/console.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace kvarena::tools {
namespace {

using nlohmann::json;
using test::TempFile;

struct Ended {
  int code = -1;
  std::string messages;
};

Ended run_into(int out, const std::vector<std::string>& arguments) {
  ChildCommand command(arguments, out);
  std::string messages = command.messages();
  return {command.wait(), messages};
}

std::string small_trace() {
  return test::mooncake_trace({{0, 100, 5}, {10, 600, 20}, {20, 50, 40}});
}

std::vector<std::vector<std::string>> commands_that_print(const std::string& trace) {
  return {{"--help"},
          {"--version"},
          {"shapes"},
          {"shapes", "--json", "-"},
          {"devices"},
          {"config", "show"},
          {"plan", "--list"},
          {"plan", "--model", "Qwen2.5-0.5B", "--gpu", "L4"},
          {"replay", trace},
          {"replay", trace, "--json", "-"},
          {"replay", trace, "--timeline", "-"},
          {"replay", trace, "--request-times", "-", "--json", "/dev/null"},
          {"bench", "attention", "--peers"},
          {"monitor", "--device", "cpu", "--once"},
          {"monitor", "--device", "cpu", "--interval", "0.1"}};
}

TEST(Program, AFullDiskIsOneErrorOfEveryCommand) {
  const TempFile trace(small_trace());
  const int full = ::open("/dev/full", O_WRONLY);
  for (const auto& arguments : commands_that_print(trace.path())) {
    const auto [code, messages] = run_into(full, arguments);
    EXPECT_EQ(code, 5) << testing::PrintToString(arguments);
    const std::string expected =
        "error: standard output could not be written: No space left on device\n";
    const auto at = messages.find(expected);
    EXPECT_NE(at, std::string::npos) << testing::PrintToString(arguments) << messages;
    EXPECT_EQ(messages.find("error: ", at + 1), std::string::npos) << messages;
  }
  ::close(full);
}

TEST(Program, OneErrorSaysAllThatCouldNotBeWritten) {
  const TempFile trace(small_trace());
  const int full = ::open("/dev/full", O_WRONLY);
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"nope", "--json", "-"},
           {"replay", trace.path(), "--timeline", "/dev/full"},
           {"replay", trace.path(), "--timeline", "/dev/full", "--json", "/dev/full"}}) {
    const auto [code, messages] = run_into(full, arguments);
    EXPECT_EQ(code, 5) << testing::PrintToString(arguments);
    EXPECT_TRUE(messages.find("No space left on device") != std::string::npos) << messages;
    EXPECT_EQ(messages.find("error: "), messages.rfind("error: ")) << messages;
  }
  ::close(full);
}

TEST(Program, AClosedOutputIsAnErrorAndNoFileTakesItsPlace) {
  const TempFile trace(small_trace());
  const TempFile series("");
  const std::string command = std::string(KVARENA_PROGRAM) + " --no-config replay " + trace.path() +
                              " --timeline " + series.path() + " 2>&1 >&-";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
  EXPECT_EQ(WEXITSTATUS(::pclose(pipe)), 5);
  EXPECT_NE(text.find("standard output could not be written: Bad file descriptor"),
            std::string::npos)
      << text;
  EXPECT_TRUE(series.content().starts_with("time_s,")) << series.content();
  EXPECT_EQ(series.content().find("balanced"), std::string::npos) << "the summary is in it";
}

/// Runs the program with a standard output that nobody reads any more.
auto run_unread(const std::vector<std::string>& arguments) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[0]);
  auto ended = run_into(ends[1], arguments);
  ::close(ends[1]);
  return ended;
}

TEST(Program, AReaderThatHasGoneEndsItQuietly) {
  const TempFile trace(small_trace());
  for (const auto& arguments : commands_that_print(trace.path())) {
    const auto [code, messages] = run_unread(arguments);
    EXPECT_EQ(code, 141) << testing::PrintToString(arguments);
    EXPECT_EQ(messages.find("error"), std::string::npos) << messages;
  }
}

TEST(Program, AReaderThatGoesMidwayEndsItQuietly) {
  std::string text;
  for (int n = 0; n < 4000; ++n) text += test::mooncake_trace({{n * 1000, 100, 5}});
  const TempFile trace(text);
  const TempFile result("");
  const std::vector<std::string> commands[] = {
      {"replay", trace.path(), "--timeline", "-", "--timeline-ms", "1", "--json", result.path()},
      {"bench", "attention", "--device", "cpu", "--batch", "1,1", "--context", "2k", "--rotate",
       "1MB", "--replays", "3"}};
  for (const auto& arguments : commands) {
    const auto [code, messages] = run_unread(arguments);
    EXPECT_EQ(code, 141) << testing::PrintToString(arguments);
    EXPECT_EQ(messages, "");
  }
  EXPECT_EQ(json::parse(result.content()).at("interrupted"), true);
}

TEST(Program, AnInterruptedBenchWritesTheRowsThatItHas) {
  const TempFile file("old");
  const int out = ::open(file.path().c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  std::string batches = "1";
  for (int n = 0; n < 999; ++n) batches += ",1";
  ChildCommand bench({"bench", "attention", "--device", "cpu", "--batch", batches, "--context",
                      "2k", "--rotate", "1MB", "--replays", "3", "--json", "-"},
                     out);
  ASSERT_NE(bench.wait_for("1 x 2k"), "");
  EXPECT_EQ(bench.end(SIGINT), 130);
  ::close(out);
  const json report = json::parse(file.content());
  EXPECT_EQ(report.at("interrupted"), true);
  EXPECT_GE(report.at("rows").size(), 1u);
  EXPECT_LT(report.at("rows").size(), 1000u);
}

TEST(Program, ATerminalThatObeysNoEscapesGetsNone) {
  ::unsetenv("NO_COLOR");
  for (const bool is_dumb : {false, true}) {
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ASSERT_EQ(::grantpt(terminal) + ::unlockpt(terminal), 0);
    const int slave = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ::setenv("TERM", is_dumb ? "dumb" : "xterm", 1);
    EXPECT_EQ(run_into(slave, {"shapes", "Llama-3.1-8B"}).code, 0);
    std::string text(4096, '\0');
    text.resize(static_cast<std::size_t>(::read(terminal, text.data(), text.size())));
    EXPECT_EQ(text.find('\x1b') == std::string::npos, is_dumb) << text;
    ::close(slave);
    ::close(terminal);
  }
}

TEST(Program, ExitCodesReachTheShell) {
  EXPECT_EQ(run_into(-1, {}).code, 2);
  EXPECT_EQ(run_into(-1, {"replay", "/nonexistent"}).code, 4);
  EXPECT_EQ(run_into(-1, {"shapes"}).code, 0);
}

std::string output_of(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> part{};
  for (std::size_t got = 0; (got = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    text.append(part.data(), got);
  }
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return text;
}

TEST(Program, StandardOutputByAnyNameIsADash) {
  const TempFile log("");
  const std::string program = std::string(KVARENA_PROGRAM) + " --no-config shapes Llama-3.1-8B ";
  const json expected = json::parse(output_of(program + "--json - 2>/dev/null"));
  for (const std::string& name : {std::string("/dev/stdout"), std::string("/dev/fd/1"),
                                  std::string("/proc/self/fd/1"), log.path()}) {
    output_of("echo old >" + log.path() + "; " + program + "--json " + name + " 2>&1 >>" +
              log.path());
    ASSERT_TRUE(log.content().starts_with("old\n")) << name << ": " << log.content();
    EXPECT_EQ(json::parse(log.content().substr(4)), expected) << name;
    output_of(program + "--json " + name + " 2>/dev/null >" + log.path());
    EXPECT_EQ(json::parse(log.content()), expected) << name;
  }
  output_of("echo old >" + log.path() + "; " + program + "--json /dev/fd/3 3>>" + log.path());
  EXPECT_TRUE(log.content().starts_with("old\n{")) << log.content();
}

TEST(Program, ReplaysStandardInputAsItDoesAFile) {
  const TempFile trace(small_trace());
  const std::string rest = " --blocks 80 --json - 2>/dev/null";
  const std::string program = std::string(KVARENA_PROGRAM) + " --no-config replay ";
  const auto file = json::parse(output_of(program + trace.path() + rest));
  auto piped = json::parse(output_of("cat " + trace.path() + " | " + program + "-" + rest));
  EXPECT_EQ(piped.at("trace"), "-");
  piped["trace"] = file.at("trace");
  EXPECT_EQ(piped, file);
  // One that is none is refused like a file: nothing is printed but the error.
  EXPECT_EQ(
      output_of("echo none | " + program + "- --blocks 80 --quiet 2>&1; true"),
      "error: standard input:1:1: found \"none\"\n  expected: a JSON object (mooncake, agent, "
      "vllm) or the header TIMESTAMP,ContextTokens,GeneratedTokens\n  to do: correct the trace; "
      "docs/reference/traces.md describes the formats\n");
}

TEST(Program, AReplayWhoseTerminalGoesLeavesNoTemporaryFiles) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("kvarena-hup-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string fifo = folder / "fifo";
  const std::string series = folder / "series.csv";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ChildCommand child({"replay", fifo, "--blocks", "100", "--timeline", series});
  std::ofstream writer(fifo);  // until the end of the test: the trace has none
  writer << small_trace() << std::flush;
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_EQ(child.end(SIGHUP), 129);
  EXPECT_TRUE(std::filesystem::exists(series));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 2);
  std::filesystem::remove_all(folder);
}

TEST(Program, AnInterruptedReplayWritesWhatItHasAndKeepsOldFilesUntilThen) {
  const std::string fifo = std::filesystem::temp_directory_path() / "kvarena-test-fifo-1";
  std::filesystem::remove(fifo);
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const TempFile series("old series");
  const TempFile result("");
  ChildCommand child(
      {"replay", fifo, "--blocks", "100", "--timeline", series.path(), "--json", result.path()});
  std::ofstream writer(fifo);  // until the end of the test: the trace has none
  writer << small_trace() << std::flush;
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_EQ(series.content(), "old series");
  EXPECT_EQ(child.end(SIGINT), static_cast<int>(ExitCode::interrupted));
  EXPECT_TRUE(series.content().starts_with("time_s,running,")) << series.content();
  const auto object = json::parse(result.content());
  EXPECT_EQ(object.at("interrupted"), true);
  EXPECT_EQ(object.at("ok"), false);
  EXPECT_GE(object.at("requests"), 2);
  std::filesystem::remove(fifo);
}

}  // namespace
}  // namespace kvarena::tools
