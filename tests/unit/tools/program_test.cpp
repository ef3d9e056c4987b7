// The program as a process: exit codes, what happens to its output, its terminal and its signals.

#include "support/test_files.hpp"
#include "unit/replay/trace_text.hpp"
#include "unit/tools/child_command.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <fstream>
#include <string>
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

std::string small_trace() { return test::mooncake_trace({{0, 100, 5}, {10, 600, 20}}); }

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

TEST(Program, AReaderThatHasGoneEndsItQuietly) {
  const TempFile trace(small_trace());
  for (const auto& arguments : commands_that_print(trace.path())) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    ::close(ends[0]);
    const auto [code, messages] = run_into(ends[1], arguments);
    ::close(ends[1]);
    EXPECT_EQ(code, 141) << testing::PrintToString(arguments);
    EXPECT_EQ(messages.find("error"), std::string::npos) << messages;
  }
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

}  // namespace
}  // namespace kvarena::tools
