#pragma once

/// @file
/// Where a command's results go: files that appear complete or not at all, `--json FILE|-`, and
/// tables that are written while the command works. A command can check before its work whether it
/// can write a file.

#include "tools/console.hpp"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace CLI {
class App;
}

namespace kvarena::tools {

/// A folder for results, made when it is missing. The destructor removes the folders that it made
/// and that are still empty, so a run without results leaves nothing behind.
class ResultFolder {
 public:
  ResultFolder() = default;
  ~ResultFolder();
  ResultFolder(const ResultFolder&) = delete;
  ResultFolder& operator=(const ResultFolder&) = delete;
  /// Makes what is missing of `folder`, or says why it cannot.
  std::error_code make(const std::filesystem::path& folder);

 private:
  std::vector<std::filesystem::path> made_;  // innermost first
};

/// A file that appears complete. The owner writes to `place()`, a file in the same folder. `commit`
/// flushes that file to the disk and renames it in one step. Without a commit, the old file stays.
/// A pipe, a device or /dev/stdout is written directly. Links are followed.
class ResultFile {
 public:
  ResultFile() = default;
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  /// Makes the file at `place()`, empty, or says why it cannot.
  std::error_code open(const std::filesystem::path& path);
  /// Where to write it.
  const std::filesystem::path& place() const noexcept { return place_; }
  /// Gives the written file the name that was given to open. Call it once, after the writer has
  /// closed the file.
  std::error_code commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path place_;  // target_ itself where it is written in its place
};

/// Writes `text` as a ResultFile; no error: it is there.
std::error_code write_whole(const std::filesystem::path& path, std::string_view text);

/// Returns the reason why write_whole could not write, or no error. Does not change the disk, and
/// opens neither device nor pipe.
std::error_code probe_write(const std::filesystem::path& path);

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
  const char* option_;
  std::string path_;
  ResultFile result_;
  std::ofstream file_;
  std::ostream* stream_ = nullptr;
};

/// Declares `--json FILE|-` on `command`.
void declare_json_option(CLI::App& command, std::string& target);

/// Whether `--json` claims standard output for itself.
inline bool json_on_stdout(const std::string& target) { return target == "-"; }

/// Whether write_json could write to `target`; leaves it as it is. For commands that work for
/// minutes before they write. Reports a failure on the console.
ExitCode probe_json(const Console& console, const std::string& target);

/// Writes json_text to `target`: "" writes nothing, "-" is standard output, anything else a file,
/// as write_whole does. Reports a failure on the console.
ExitCode write_json(const Console& console, const std::string& target,
                    const nlohmann::ordered_json& document);

/// Prints `text` on standard output where `--json` does not claim it, and calls write_json.
ExitCode print_result(const Console& console, const std::string& target, std::string_view text,
                      const nlohmann::ordered_json& document);

/// `document` in one line. Here and in json_text text is ASCII, with escapes for the rest, and
/// bytes that are no UTF-8 are replaced.
std::string json_line(const nlohmann::ordered_json& document);
/// `document` for a file: indented, with a newline at the end.
std::string json_text(const nlohmann::ordered_json& document);

}  // namespace kvarena::tools
