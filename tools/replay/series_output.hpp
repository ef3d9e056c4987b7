#pragma once

/// @file
/// `SeriesOutput`: a table that a command writes while it works, to a file or to standard output.

#include "tools/console.hpp"
#include "tools/exit_codes.hpp"
#include "tools/result_file.hpp"

#include <fstream>
#include <ostream>
#include <string>

namespace CLI {
class App;
}

namespace kvarena::tools {

/// One option `FILE|-` and what is written to it. The complete file appears at commit; until then
/// the old file stays. Not movable, because others write to its stream.
class SeriesOutput {
 public:
  explicit SeriesOutput(const char* option) : option_(option) {}

  /// Declares the option on `command`.
  void declare(CLI::App& command, const char* help);
  bool is_on_stdout() const noexcept { return path_ == "-"; }
  /// Before the work: makes ready what stream() returns. Reports a failure on the console.
  ExitCode open(const Console& console);
  /// Where to write; nullptr without the option.
  std::ostream* stream() noexcept { return stream_; }
  /// After the work: the file has its name. Reports a failure on the console.
  ExitCode commit(const Console& console);

 private:
  ExitCode fail(const Console& console, const std::error_code& error) const;

  const char* option_;
  std::string path_;
  ResultFile result_;
  std::ofstream file_;
  std::ostream* stream_ = nullptr;
};

}  // namespace kvarena::tools
