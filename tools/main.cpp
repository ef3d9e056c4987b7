#include "tools/command_line.hpp"
#include "tools/interrupt.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <system_error>

namespace {

using namespace kvarena::tools;

/// The buffer of standard output. A closed reader ends the command as a signal would.
class StandardOutput : public DescriptorBuffer {
 public:
  StandardOutput() : DescriptorBuffer(STDOUT_FILENO) {}

 protected:
  int sync() override {
    const int result = DescriptorBuffer::sync();
    if (error() == std::errc::broken_pipe) Interrupt::request();
    return result;
  }
};

TerminalSize ask_terminal_size() {
  winsize size{};
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    if (::ioctl(stream, TIOCGWINSZ, &size) == 0) return {size.ws_row, size.ws_col};
  }
  return {};
}

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread yet
  return value == nullptr ? "" : value;
}

/// A standard stream that is closed gets a descriptor that cannot be used either, so that no file
/// opened later takes its number and its text.
void reserve_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0) {
      static_cast<void>(::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  reserve_standard_streams();
  ::signal(SIGPIPE, SIG_IGN);  // a reader that goes is an error of write()
  std::ios::sync_with_stdio(false);
  StandardOutput output;
  std::ostream out(&output);
  Console console{out, std::cerr};
  const bool obeys_escapes = variable("TERM") != "dumb";
  console.out_is_terminal = obeys_escapes && ::isatty(STDOUT_FILENO) == 1;
  console.err_is_terminal = obeys_escapes && ::isatty(STDERR_FILENO) == 1;
  console.terminal_size = ask_terminal_size;
  console.out_error = [&output] { return output.error(); };
  console.color = variable("NO_COLOR").empty();
  std::error_code unknown;
  console.program = std::filesystem::read_symlink("/proc/self/exe", unknown).string();
  return static_cast<int>(run_command_line(argc, argv, console, ConfigSources::of_process()));
}
