#include "tools/result_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kvarena::tools {
namespace {

using std::filesystem::file_type;
using std::filesystem::path;

constexpr int kMostLinks = 40;  // as the kernel follows

std::error_code last_error() { return {errno != 0 ? errno : EIO, std::generic_category()}; }

/// The status of what the name leads to; its mode is 0 when there is nothing.
struct stat status_of(const path& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 ? status : (struct stat){};
}

/// Whether both are there and the same.
bool is_one(const struct stat& a, const struct stat& b) {
  return a.st_mode != 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/// Whether the kernel makes up what is in the folder: /proc/self/fd/1 may lead to a file that a
/// shell has open.
bool is_of_kernel(const path& folder) {
  struct statfs system {};
  return ::statfs(folder.c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

/// Follows links as far as they lead among files.
path target_of(const path& file) {
  std::error_code error;
  path target = std::filesystem::absolute(file, error);
  for (int links = 0; links < kMostLinks; ++links) {
    const path folder = std::filesystem::canonical(target.parent_path(), error);
    if (error) break;
    target = folder / target.filename();
    if (is_of_kernel(folder)) break;
    const path next = std::filesystem::read_symlink(target, error);
    if (error) break;
    target = folder / next;
  }
  return target;
}

/// Whether replacing it would put a file where there is something else.
bool is_written_in_place(const path& target) {
  std::error_code error;
  const file_type type = std::filesystem::status(target, error).type();
  return is_of_kernel(target.parent_path()) ||
         (type != file_type::regular && type != file_type::not_found);
}

/// Whether the system will refuse to put another file in its place: something is mounted there, or
/// the folder is sticky and both are of others.
bool is_held_in_place(const path& target, const struct stat& file) {
  struct statx more {};
  if (::statx(AT_FDCWD, target.c_str(), 0, 0, &more) == 0 &&
      (more.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) {
    return true;
  }
  const struct stat folder = status_of(target.parent_path());
  const uid_t user = ::geteuid();
  return (folder.st_mode & S_ISVTX) != 0 && user != 0 && user != file.st_uid &&
         user != folder.st_uid;
}

std::error_code check_writable(const path& file) {
  return ::faccessat(AT_FDCWD, file.c_str(), W_OK, AT_EACCESS) == 0 ? std::error_code{}
                                                                    : last_error();
}

/// Closes `file`, whose last call had `result`; the reason when that or closing failed.
std::error_code close_after(ssize_t result, int file) {
  const std::error_code error = result < 0 ? last_error() : std::error_code{};
  return ::close(file) == 0 || error ? error : last_error();
}

/// Writes what is in `from` into `to`, which is there.
std::error_code copy_into(const path& from, const path& to) {
  const int in = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (in < 0) return last_error();
  const int out = ::open(to.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (out < 0) return close_after(-1, in);
  ssize_t sent = 0;
  while ((sent = ::sendfile(out, in, nullptr, 1 << 30)) > 0) {
  }
  if (sent == 0) sent = ::fsync(out);
  const std::error_code error = close_after(sent, out);
  ::close(in);
  return error;
}

/// Reports the failure of `option`'s target, if there is one.
ExitCode exit_code_of(const Console& console, const char* option, const std::string& target,
                      const std::error_code& error, const path& left_at = {}) {
  if (!error) return ExitCode::ok;
  console.output_error(fmt::format("{} {}: {}", option, target, error.message()), "a writable file",
                       left_at.empty()
                           ? "check the folder, its permissions and the disk, or write to '-'"
                           : fmt::format("the result is in {}", left_at.string()));
  return ExitCode::environment;
}

/// Makes `option` take a file that is written, or `-`.
void take_output(CLI::Option* option) {
  refuse_empty(option->type_name("FILE|-"))->transform([](const std::string& name) {
    return is_standard_output(name) ? "-" : name;
  });
}

/// Standard output may be a terminal, and names may be of others: a process's, a server's.
std::string dump(const nlohmann::ordered_json& document, int indent) {
  return document.dump(indent, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

ResultFile::~ResultFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

std::error_code ResultFile::open(const path& path) {
  target_ = target_of(path);
  if (is_written_in_place(target_)) {
    file_ = ::open(target_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file_ < 0) return last_error();
  } else if (const std::error_code error = open_temporary()) {
    return error;
  }
  stream_.rdbuf(&buffer_.emplace(file_));
  return {};
}

std::error_code ResultFile::open_temporary() {
  const struct stat old = status_of(target_);
  const bool is_new = old.st_mode == 0;
  for (int number = 0; file_ < 0; ++number) {
    const path name = target_.parent_path() / fmt::format(".kvarena-{}-{}.tmp", ::getpid(), number);
    file_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, is_new ? 0666 : 0600);
    if (file_ < 0 && errno != EEXIST) return last_error();
    if (file_ >= 0) temporary_ = name;
  }
  if (is_new) return {};
  const struct stat made = status_of(temporary_);
  keeps_owner_ = (made.st_uid == old.st_uid && made.st_gid == old.st_gid) ||
                 ::fchown(file_, old.st_uid, old.st_gid) == 0;
  ::fchmod(file_, old.st_mode & 07777);
  const bool is_replaced = keeps_owner_ && !is_held_in_place(target_, old);
  return is_replaced ? std::error_code{} : check_writable(target_);
}

std::error_code ResultFile::flush() {
  stream_.flush();
  return buffer_->error();
}

std::error_code ResultFile::commit() {
  std::error_code error = flush();
  const int file = std::exchange(file_, -1);
  const std::error_code closed = close_after(temporary_.empty() ? 0 : ::fsync(file), file);
  if (!error) error = closed;
  if (error || temporary_.empty()) return error;
  error = replace();
  if (error) left_at_ = std::exchange(temporary_, {});
  return error;
}

std::error_code ResultFile::replace() {
  if (keeps_owner_ && ::rename(temporary_.c_str(), target_.c_str()) == 0) {
    temporary_.clear();
    const int folder = ::open(target_.parent_path().c_str(), O_RDONLY | O_CLOEXEC);
    if (folder >= 0) static_cast<void>(close_after(::fsync(folder), folder));
    return {};  // some file systems cannot flush folders
  }
  const std::error_code error =
      keeps_owner_ ? last_error() : std::error_code(EPERM, std::generic_category());
  const bool is_held =
      error == std::errc::device_or_resource_busy || error == std::errc::operation_not_permitted ||
      error == std::errc::permission_denied || error == std::errc::cross_device_link;
  return is_held && status_of(target_).st_mode != 0 ? copy_into(temporary_, target_) : error;
}

std::error_code write_whole(const path& file, std::string_view text, path* left_at) {
  ResultFile result;
  if (const std::error_code error = result.open(file)) return error;
  result.stream() << text;
  const std::error_code error = result.commit();
  if (left_at != nullptr) *left_at = result.left_at();
  return error;
}

std::error_code probe_write(const path& file) {
  const path target = target_of(file);
  if (is_written_in_place(target)) {
    std::error_code ignored;
    if (std::filesystem::is_directory(target, ignored)) {
      return std::make_error_code(std::errc::is_a_directory);
    }
    return check_writable(target);
  }
  ResultFile result;
  if (const std::error_code error = result.open(file)) return error;
  result.stream() << '\n';
  return result.flush();
}

bool is_standard_output(const std::string& name) {
  if (name == "-") return true;
  struct stat out {};
  if (::fstat(STDOUT_FILENO, &out) != 0 || !is_one(out, status_of(name))) return false;
  if (!S_ISCHR(out.st_mode)) return true;
  const path target = target_of(name);  // other names of a terminal and /dev/null are files
  return is_of_kernel(target.parent_path()) && target.filename() == std::to_string(STDOUT_FILENO);
}

bool are_different_files(const Console& console, const std::vector<NamedFile>& outputs,
                         const NamedFile& input) {
  const path read = input.path == "-" ? "/proc/self/fd/0" : input.path;
  const auto is_same = [&](const path& a, const path& b) {
    const struct stat first = status_of(a);
    return !S_ISCHR(first.st_mode) && (is_one(first, status_of(b)) || target_of(a) == target_of(b));
  };
  for (auto a = outputs.begin(); a != outputs.end(); ++a) {
    if (a->path.empty()) continue;
    auto other = std::find_if(a + 1, outputs.end(), [&](const NamedFile& b) {
      if (b.path == "-" || a->path == "-") return a->path == b.path;
      return !b.path.empty() && is_same(a->path, b.path);
    });
    const NamedFile* b = other != outputs.end() ? &*other : nullptr;
    if (b == nullptr && !read.empty() && a->path != "-" && is_same(a->path, read)) b = &input;
    if (b == nullptr) continue;
    console.error(
        fmt::format("{} {} and {} {} are the same file", a->option, a->path, b->option, b->path),
        "another file for each, and '-' at most once", "name another file");
    if (a->option == "--json" && a->path != "-") console.has_json = true;  // not a word into it
    return false;
  }
  return true;
}

CLI::Option* refuse_empty(CLI::Option* option) {
  return option->check([](const std::string& name) {
    return name.empty() ? "an empty name; expected a file or a folder" : "";
  });
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
  take_output(command.add_option(option_, path_, help));
}

ExitCode SeriesOutput::open(const Console& console) {
  if (path_.empty()) return ExitCode::ok;
  stream_ = is_on_stdout() ? &console.out : &result_.stream();
  return is_on_stdout() ? ExitCode::ok : exit_code_of(console, option_, path_, result_.open(path_));
}

ExitCode SeriesOutput::commit(const Console& console) {
  if (path_.empty() || is_on_stdout()) return ExitCode::ok;
  const std::error_code error = result_.commit();
  return exit_code_of(console, option_, path_, error, result_.left_at());
}

std::string json_line(const nlohmann::ordered_json& document) { return dump(document, -1); }

std::string json_text(const nlohmann::ordered_json& document) { return dump(document, 2) + '\n'; }

void declare_json_option(CLI::App& command, std::string& target) {
  CLI::Option* json =
      command.add_option("--json", target,
                         "Write the result as one JSON object to FILE, or to standard output for "
                         "'-' (everything else then goes to standard error)");
  take_output(json->configurable(false));  // who reads the result asks for it, once
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
  path left_at;
  const std::error_code error = write_whole(target, json_text(document), &left_at);
  return exit_code_of(console, "--json", target, error, left_at);
}

ExitCode print_result(const Console& console, const std::string& target, std::string_view text,
                      const nlohmann::ordered_json& document) {
  if (!json_on_stdout(target)) console.out << text;
  return write_json(console, target, document);
}

}  // namespace kvarena::tools
