#pragma once

/// @file
/// `Console`: the output of a command, `ExitCode`, and the buffer of an output. Data goes to `out`,
/// messages to `err`. Both are injected, so tests can read them. One thread at a time.

#include "base/finding.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <system_error>

namespace kvarena::verify {
enum class RunEnd : std::uint8_t;
}

namespace kvarena::tools {

/// Exit codes of every command. docs/reference/command.md repeats this table for people.
enum class ExitCode : int {
  ok = 0,            ///< done, and every check that was asked for held
  check_failed = 1,  ///< the run finished or stopped because a check failed: verification, balance
  usage = 2,  ///< the command line is wrong: unknown option, value out of range, contradiction
  does_not_fit = 3,   ///< the device's memory or the pool is too small for what was asked
  bad_input = 4,      ///< an input file cannot be opened, or is not what it should be
  environment = 5,    ///< the operating system refused something else, or there is a bug in kvarena
  hung_up = 129,      ///< as interrupted, by SIGHUP: the terminal is gone
  interrupted = 130,  ///< SIGINT or SIGTERM ended it early; finished results are written and marked
                      ///< as interrupted
  reader_gone = 141,  ///< standard output was closed by its reader: `kvarena ... | head -1`
};

/// The exit code of a replay or of pressure scenarios that end like this.
ExitCode exit_code_of(verify::RunEnd end) noexcept;

/// A terminal's size in characters; 0: unknown.
struct TerminalSize {
  int rows = 0;     ///< lines
  int columns = 0;  ///< characters of a line

  friend bool operator==(const TerminalSize&, const TerminalSize&) = default;
};

/// The buffer of a file descriptor. It keeps the error of a failed write, and writes no more then.
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(int file) : file_(file) { clear(); }
  /// Why a write failed, or no error.
  std::error_code error() const noexcept { return error_; }

 protected:
  int_type overflow(int_type c) override;
  int sync() override;

 private:
  void clear() noexcept { setp(bytes_.data(), bytes_.data() + bytes_.size()); }

  int file_;
  std::array<char, 1 << 14> bytes_{};
  std::error_code error_;
};

/// The two streams and how they may be used.
struct Console {
  std::ostream& out;  ///< data: what the command was asked for
  std::ostream& err;  ///< messages: errors, warnings, progress
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  bool color = true;      ///< colour where the stream is a terminal
  bool quiet = false;     ///< no notes, no progress, no summary; errors and warnings stay
  std::string program{};  ///< this executable, to start it again; empty: cannot be
  std::function<TerminalSize()> terminal_size{};  ///< asks now; empty: the size is not known
  std::function<std::error_code()> out_error{};   ///< why `out` failed; empty: nobody knows
  mutable Finding failure{};      ///< the first error: what programs are told of a refusal
  mutable bool has_json = false;  ///< the JSON object asked for is written, or cannot be

  /// An error: what happened, what was expected, what to do. Empty parts are left out. Here and in
  /// warnings and notes control characters but the ends of lines become '?'.
  void error(std::string_view happened, std::string_view expected = {},
             std::string_view advice = {}) const;
  /// As above; the subject, if any, comes first.
  void error(const Finding& finding) const {
    error(headline(finding), finding.expected, finding.advice);
  }
  /// An output that cannot be written: an error, or, after one, another line of that error.
  void output_error(std::string_view happened, std::string_view expected,
                    std::string_view advice) const;
  /// Whether the reader of `out` has closed it. That ends a command without a message.
  bool is_unread() const { return out_error && out_error() == std::errc::broken_pipe; }
  /// Writes a warning: the command goes on, but the user should know about it.
  void warning(std::string_view message) const;
  /// A remark; silent when quiet.
  void note(std::string_view message) const;

  /// Escape sequences for `stream`, or nothing where it is not a terminal or colour is off.
  std::string_view bold(const std::ostream& stream) const { return code(stream, "\x1b[1m"); }
  /// As bold.
  std::string_view red(const std::ostream& stream) const { return code(stream, "\x1b[31m"); }
  /// As bold.
  std::string_view green(const std::ostream& stream) const { return code(stream, "\x1b[32m"); }
  /// As bold.
  std::string_view yellow(const std::ostream& stream) const { return code(stream, "\x1b[33m"); }
  /// Ends bold and colours.
  std::string_view plain(const std::ostream& stream) const { return code(stream, "\x1b[0m"); }

 private:
  std::string_view code(const std::ostream& stream, std::string_view sequence) const;
};

}  // namespace kvarena::tools
