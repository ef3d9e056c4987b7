#include "tools/result_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

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

}  // namespace kvarena::tools
