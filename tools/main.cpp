#include "tools/command_line.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>

namespace {

kvarena::tools::TerminalSize ask_terminal_size() {
  winsize size{};
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    if (::ioctl(stream, TIOCGWINSZ, &size) == 0) return {size.ws_row, size.ws_col};
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvarena::tools;
  std::ios::sync_with_stdio(false);
  const char* no_color = std::getenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe): one thread yet
  Console console{std::cout, std::cerr};
  console.out_is_terminal = ::isatty(STDOUT_FILENO) == 1;
  console.err_is_terminal = ::isatty(STDERR_FILENO) == 1;
  console.terminal_size = ask_terminal_size;
  console.color = no_color == nullptr || *no_color == '\0';
  std::error_code unknown;
  console.program = std::filesystem::read_symlink("/proc/self/exe", unknown).string();
  const ExitCode code = run_command_line(argc, argv, console, ConfigSources::of_process());
  std::cout.flush();
  if (code == ExitCode::ok && !std::cout) return static_cast<int>(ExitCode::environment);
  return static_cast<int>(code);
}
