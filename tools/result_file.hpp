#pragma once

/// @file
/// Where a command's results go: files that appear complete or not at all, `--json FILE|-`, and
/// tables that are written while the command works. A command can check before its work whether it
/// can write a file.

#include "tools/console.hpp"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

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

/// A file that appears complete. The owner writes to `stream()`, which is a temporary file in the
/// same folder. `commit` flushes it to the disk and renames it in one step. Without a commit, the
/// old file stays. Links are followed. The file keeps its owner and permissions: where a new file
/// cannot have them, or cannot take the place of the old one, `commit` writes into the old file.
/// What is no file (a pipe, a device, a name of /proc) is written directly, at its end.
class ResultFile {
 public:
  ResultFile() = default;
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  /// Opens what `stream()` writes to, or says why it cannot. Call it once.
  std::error_code open(const std::filesystem::path& path);
  /// Where to write, after open.
  std::ostream& stream() noexcept { return stream_; }
  /// Writes what the stream still has, and returns why something could not be written, or no error.
  std::error_code flush();
  /// Gives what was written the name that was given to open, or says why it cannot. Call it once.
  std::error_code commit();
  /// After a failed commit: where the complete text is; empty: nowhere.
  const std::filesystem::path& left_at() const noexcept { return left_at_; }

 private:
  std::error_code open_temporary();
  std::error_code replace();

  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty: the target itself is written
  std::filesystem::path left_at_;
  bool keeps_owner_ = true;  // the temporary file is what the target was
  int file_ = -1;
  std::optional<DescriptorBuffer> buffer_;
  std::ostream stream_{nullptr};
};

/// Writes `text` as a ResultFile; no error: it is there. `left_at`: as ResultFile::left_at.
std::error_code write_whole(const std::filesystem::path& path, std::string_view text,
                            std::filesystem::path* left_at = nullptr);

/// Returns the reason why write_whole could not write, as far as it can be known, or no error. For
/// a file it makes the temporary file and removes it. It opens neither device nor pipe.
std::error_code probe_write(const std::filesystem::path& path);

/// Whether text for `name` goes to this process's standard output: `-`, `/dev/stdout`, or the file
/// that a shell opened as standard output.
bool is_standard_output(const std::string& name);

/// Where an option or argument writes to, or reads from.
struct NamedFile {
  std::string_view option;
  std::string path;  ///< "": none; "-": a standard stream
};
/// Whether no output is the file of another output or of `input`. Reports two that are the same,
/// but not to a `--json`, the first output, that is one of them. Devices may be given twice.
bool are_different_files(const Console& console, const std::vector<NamedFile>& outputs,
                         const NamedFile& input = {});

/// Makes `option` refuse an empty value.
CLI::Option* refuse_empty(CLI::Option* option);

/// One option `FILE|-` and what is written to it. The complete file appears at commit; until then
/// the old file stays. Not movable, because others write to its stream.
class SeriesOutput {
 public:
  explicit SeriesOutput(const char* option) : option_(option) {}

  /// Declares the option on `command`.
  void declare(CLI::App& command, const char* help);
  bool is_on_stdout() const noexcept { return path_ == "-"; }
  NamedFile file() const { return {option_, path_}; }
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
