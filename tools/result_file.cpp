#include "tools/result_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cerrno>

namespace kvarena::tools {
namespace {

using std::filesystem::file_type;
using std::filesystem::path;

constexpr int kMostLinks = 40;  // as the kernel follows

std::error_code last_error() { return {errno != 0 ? errno : EIO, std::generic_category()}; }

std::error_code write(const path& file, std::string_view text) {
  errno = 0;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  return out ? std::error_code{} : last_error();
}

/// A name of this process in the same folder.
path beside(path file) {
  file += fmt::format(".{}.tmp", ::getpid());
  return file;
}

/// Whether the kernel makes up what the name leads to: /dev/stdout may lead to a file that a shell
/// has open.
bool is_of_kernel(const path& file) {
  return file.native().starts_with("/dev/") || file.native().starts_with("/proc/");
}

/// Follows links as far as they lead among files.
path target_of(const path& file) {
  std::error_code error;
  path target = std::filesystem::absolute(file, error).lexically_normal();
  for (int links = 0; links < kMostLinks && !is_of_kernel(target); ++links) {
    const path next = std::filesystem::read_symlink(target, error);
    if (error) break;
    target = (target.parent_path() / next).lexically_normal();
  }
  return target;
}

/// Whether replacing it would put a file where there is something else.
bool is_written_in_place(const path& target) {
  std::error_code error;
  const file_type type = std::filesystem::status(target, error).type();
  return is_of_kernel(target) || (type != file_type::regular && type != file_type::not_found);
}

/// Waits until the disk has what was written to a file or folder.
std::error_code sync(const path& at) {
  const int file = ::open(at.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return last_error();
  const std::error_code error = ::fsync(file) == 0 ? std::error_code{} : last_error();
  ::close(file);
  return error;
}

/// Reports the failure of `option`'s target, if there is one.
ExitCode exit_code_of(const Console& console, const char* option, const std::string& target,
                      const std::error_code& error) {
  if (!error) return ExitCode::ok;
  console.error(fmt::format("{} {}: {}", option, target, error.message()), "a writable file",
                "check the folder, its permissions and the disk, or write to '-'");
  return ExitCode::environment;
}

/// Standard output may be a terminal, and names may be of others: a process's, a server's.
std::string dump(const nlohmann::ordered_json& document, int indent) {
  return document.dump(indent, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

ResultFile::~ResultFile() {
  std::error_code ignored;
  if (place_ != target_) std::filesystem::remove(place_, ignored);
}

std::error_code ResultFile::open(const path& path) {
  target_ = target_of(path);
  place_ = target_;
  if (is_written_in_place(target_)) return {};
  const std::error_code error = write(beside(target_), "");
  if (error) return error;
  place_ = beside(target_);
  std::error_code is_new;
  const auto mode = std::filesystem::status(target_, is_new).permissions();
  if (mode != std::filesystem::perms::unknown) std::filesystem::permissions(place_, mode, is_new);
  return {};
}

std::error_code ResultFile::commit() {
  if (place_ == target_) return {};
  std::error_code error = sync(place_);
  if (!error) std::filesystem::rename(place_, target_, error);
  if (error) return error;
  place_ = target_;
  static_cast<void>(sync(target_.parent_path()));  // some file systems have no such thing
  return {};
}

std::error_code write_whole(const path& file, std::string_view text) {
  ResultFile result;
  std::error_code error = result.open(file);
  if (!error) error = write(result.place(), text);
  return error ? error : result.commit();
}

std::error_code probe_write(const path& file) {
  ResultFile result;
  std::error_code error = result.open(file);
  if (error || result.place() != target_of(file))
    return error ? error : write(result.place(), "\n");
  if (std::filesystem::is_directory(result.place(), error)) {
    return std::make_error_code(std::errc::is_a_directory);
  }
  return ::access(result.place().c_str(), W_OK) == 0 ? std::error_code{} : last_error();
}

ResultFolder::~ResultFolder() {
  std::error_code not_empty;
  for (const path& folder : made_) std::filesystem::remove(folder, not_empty);
}

std::error_code ResultFolder::make(const path& folder) {
  std::error_code error;
  const path target = std::filesystem::absolute(folder, error).lexically_normal();
  if (error) return error;
  std::error_code ignored;
  for (path at = target;
       std::filesystem::symlink_status(at, ignored).type() == file_type::not_found;
       at = at.parent_path()) {
    made_.push_back(at);
  }
  std::filesystem::create_directories(target, error);
  return error;
}

void SeriesOutput::declare(CLI::App& command, const char* help) {
  command.add_option(option_, path_, help)->type_name("FILE|-");
}

ExitCode SeriesOutput::open(const Console& console) {
  if (path_.empty()) return ExitCode::ok;
  stream_ = &console.out;
  if (is_on_stdout()) return ExitCode::ok;
  std::error_code error = result_.open(path_);
  if (!error) {
    errno = 0;
    file_.open(result_.place(), std::ios::binary | std::ios::trunc);
    if (!file_) error = last_error();
  }
  stream_ = &file_;
  return exit_code_of(console, option_, path_, error);
}

ExitCode SeriesOutput::commit(const Console& console) {
  if (path_.empty() || is_on_stdout()) return ExitCode::ok;
  errno = 0;
  file_.close();
  return exit_code_of(console, option_, path_, file_ ? result_.commit() : last_error());
}

std::string json_line(const nlohmann::ordered_json& document) { return dump(document, -1); }

std::string json_text(const nlohmann::ordered_json& document) { return dump(document, 2) + '\n'; }

void declare_json_option(CLI::App& command, std::string& target) {
  command
      .add_option("--json", target,
                  "Write the result as one JSON object to FILE, or to standard output for '-' "
                  "(everything else then goes to standard error)")
      ->type_name("FILE|-")
      ->configurable(false);  // who reads the result asks for it, once
}

ExitCode probe_json(const Console& console, const std::string& target) {
  if (target.empty() || json_on_stdout(target)) return ExitCode::ok;
  const std::error_code error = probe_write(target);
  if (error) console.has_json = true;
  return exit_code_of(console, "--json", target, error);
}

ExitCode write_json(const Console& console, const std::string& target,
                    const nlohmann::ordered_json& document) {
  if (target.empty()) return ExitCode::ok;
  console.has_json = true;
  if (json_on_stdout(target)) {
    console.out << json_text(document) << std::flush;
    return ExitCode::ok;  // run_command_line reports what could not be written
  }
  return exit_code_of(console, "--json", target, write_whole(target, json_text(document)));
}

ExitCode print_result(const Console& console, const std::string& target, std::string_view text,
                      const nlohmann::ordered_json& document) {
  if (!json_on_stdout(target)) console.out << text;
  return write_json(console, target, document);
}

}  // namespace kvarena::tools
