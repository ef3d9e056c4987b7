#pragma once

/// @file
/// The command in a process of its own, for what signals do. KVARENA_PROGRAM names it.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvarena::tools {

/// The command in a process of its own; its messages can be read while it runs.
class ChildCommand {
 public:
  /// `out` is its standard output; -1: nobody's.
  explicit ChildCommand(std::vector<std::string> arguments, int out = -1) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDERR_FILENO);
      ::dup2(out >= 0 ? out : ::open("/dev/null", O_WRONLY), STDOUT_FILENO);
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
      if (std::string_view(line.data()).find(words) != std::string_view::npos) return line.data();
    }
    return "";
  }
  /// Its exit code after `signal`; -1: it had none.
  int end(int signal) {
    ::kill(pid_, signal);
    return wait();
  }
  /// All messages up to its end.
  std::string messages() {
    std::string text;
    std::array<char, 1024> line{};
    while (std::fgets(line.data(), line.size(), messages_) != nullptr) text += line.data();
    return text;
  }
  /// Its exit code; -1: it had none.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  FILE* messages_ = nullptr;
};

}  // namespace kvarena::tools
