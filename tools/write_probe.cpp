#include "tools/write_probe.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>

#include <unistd.h>

namespace kvarena::tools {
namespace {

using std::filesystem::file_type;
using std::filesystem::path;

/// Writes a byte into a file of its own beside `name`.
std::error_code write_beside(path name) {
  name += fmt::format(".{}.probe", ::getpid());
  errno = 0;
  std::ofstream file(name, std::ios::binary | std::ios::trunc);
  file << '\n';
  file.close();
  const int cause = errno != 0 ? errno : EIO;
  const bool written = static_cast<bool>(file);
  std::error_code removed;
  std::filesystem::remove(name, removed);
  return written ? removed : std::error_code(cause, std::generic_category());
}

}  // namespace

std::error_code probe_file(const path& file) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(file, error);
  if (status.type() == file_type::not_found) return write_beside(file);
  if (error) return error;
  if (status.type() == file_type::directory) return std::make_error_code(std::errc::is_a_directory);
  if (::access(file.c_str(), W_OK) == 0) return {};
  return {errno, std::generic_category()};
}

std::error_code probe_replacement(const path& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    return std::make_error_code(std::errc::is_a_directory);
  }
  return write_beside(file);
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
