// kvarena replay --http: served during and after the run, as another process sees it.

#include "unit/replay/trace_text.hpp"
#include "unit/tools/command_run.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::tools {
namespace {

using nlohmann::json;
using test::TempFile;

/// The command in a process of its own; its messages can be read while it runs.
class ChildCommand {
 public:
  explicit ChildCommand(std::vector<std::string> arguments) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDERR_FILENO);
      ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
      ::close(ends[0]);
      std::vector<char*> argv;
      std::string program = KVARENA_PROGRAM;
      argv.push_back(program.data());
      std::string alone = "--no-config";
      argv.push_back(alone.data());
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(program.c_str(), argv.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    messages_ = ::fdopen(ends[0], "r");
  }
  ~ChildCommand() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    if (messages_ != nullptr) std::fclose(messages_);
  }
  ChildCommand(const ChildCommand&) = delete;
  ChildCommand& operator=(const ChildCommand&) = delete;

  /// The first message that contains `words`; "" when they end before.
  std::string wait_for(const std::string& words) {
    std::array<char, 1024> line{};
    while (std::fgets(line.data(), line.size(), messages_) != nullptr) {
      if (contains(line.data(), words)) return line.data();
    }
    return "";
  }
  /// Its exit code after `signal`.
  int end(int signal) {
    ::kill(pid_, signal);
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  FILE* messages_ = nullptr;
};

/// "http://127.0.0.1:PORT" of "serving http://127.0.0.1:PORT/health, ...".
std::string url_in(const std::string& message) {
  const std::size_t begin = message.find("http://");
  return begin == message.npos ? "" : message.substr(begin, message.find("/health") - begin);
}

TEST(ReplayHttp, ServesAndLingersUntilInterrupted) {
  const TempFile trace(test::mooncake_trace({{0, 100, 5}, {10, 600, 20}, {20, 50, 40}}));
  for (const int signal : {SIGINT, SIGTERM}) {
    ChildCommand replay({"replay", trace.path(), "--blocks", "50", "--http", "127.0.0.1:0",
                         "--linger", "--json", "/dev/null"});
    const std::string url = url_in(replay.wait_for("serving http"));
    ASSERT_NE(url, "");
    ASSERT_NE(replay.wait_for("Ctrl-C"), "");
    const auto seen = run({"monitor", "--url", url, "--once", "--json", "-"});
    ASSERT_EQ(seen.code, ExitCode::ok) << seen.err;
    const json stats = json::parse(seen.out);
    EXPECT_EQ(stats["health"]["status"], "healthy");
    ASSERT_EQ(stats["pools"].size(), 1u);
    const json& pool = stats["pools"][0];
    EXPECT_EQ(pool["name"], "replay");
    EXPECT_EQ(pool["blocks"]["total"], 50);
    EXPECT_EQ(pool["blocks"]["free"], 50);
    EXPECT_EQ(pool["tables"]["sequences_ever"], 3);
    EXPECT_GT(pool["step"].get<int>(), 40);
    EXPECT_EQ(replay.end(signal), 0);
  }
}

TEST(ReplayHttp, PreemptionsAreReported) {
  const TempFile trace(test::mooncake_trace({{0, 100, 200}, {0, 100, 200}, {0, 100, 200}}));
  ChildCommand replay({"replay", trace.path(), "--blocks", "30", "--reserve", "none", "--watermark",
                       "0", "--http", "127.0.0.1:0", "--linger"});
  const std::string url = url_in(replay.wait_for("serving http"));
  ASSERT_NE(url, "");
  ASSERT_NE(replay.wait_for("Ctrl-C"), "");
  const auto seen = run({"monitor", "--url", url, "--once", "--json", "-"});
  ASSERT_EQ(seen.code, ExitCode::ok) << seen.err;
  const json pool = json::parse(seen.out)["pools"][0];
  EXPECT_GT(pool["preemptions"].get<int>(), 0);
  EXPECT_EQ(pool["waiting_requests"], 0);
  EXPECT_EQ(replay.end(SIGTERM), 0);
}

TEST(ReplayHttp, EndsByItselfWithoutLinger) {
  const TempFile trace(test::mooncake_trace({{0, 100, 5}}));
  const auto seen = run({"replay", trace.path(), "--http", "localhost:0"});
  EXPECT_EQ(seen.code, ExitCode::ok) << seen.err;
  EXPECT_TRUE(contains(seen.err, "serving http://")) << seen.err;
}

TEST(ReplayHttp, ARunWithoutAPoolDoesNotLinger) {
  const auto seen = run({"replay", "/no/such/trace", "--http", "127.0.0.1:0", "--linger"});
  EXPECT_EQ(seen.code, ExitCode::bad_input) << seen.err;
}

TEST(ReplayHttp, WhatIsWrongIsNamed) {
  const TempFile trace(test::mooncake_trace({{0, 100, 5}}));
  const auto refused = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"replay", trace.path()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  EXPECT_EQ(refused({"--http", "9400"}).code, ExitCode::usage);
  EXPECT_EQ(refused({"--linger"}).code, ExitCode::usage);
  EXPECT_EQ(refused({"--http", "127.0.0.1:0", "--http-token-file", "/no/such"}).code,
            ExitCode::bad_input);
  const TempFile blank("\n");
  const auto no_token = refused({"--http", "127.0.0.1:0", "--http-token-file", blank.path()});
  EXPECT_EQ(no_token.code, ExitCode::bad_input)
      << "a file without a token is not served without one";
  EXPECT_TRUE(contains(no_token.err, "first line is empty")) << no_token.err;
  const auto open_to_all = refused({"--http", "0.0.0.0:0"});
  EXPECT_EQ(open_to_all.code, ExitCode::usage);
  EXPECT_TRUE(contains(open_to_all.err, "--http-token-file")) << open_to_all.err;
  EXPECT_EQ(refused({"--http", "example.org:0"}).code, ExitCode::usage);
}

}  // namespace
}  // namespace kvarena::tools
