#include "tools/result_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>

#include <unistd.h>

namespace kvarena::tools {
namespace {

using std::filesystem::file_type;
using std::filesystem::path;

std::error_code write(const path& file, std::string_view text) {
  errno = 0;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (out) return {};
  return {errno != 0 ? errno : EIO, std::generic_category()};
}

/// A name of this process in the same folder.
path beside(path file) {
  file += fmt::format(".{}.tmp", ::getpid());
  return file;
}

/// Whether replacing it would put a file where there is something else.
bool is_written_in_place(const path& file) {
  std::error_code error;
  const file_type type = std::filesystem::symlink_status(file, error).type();
  if (type == file_type::symlink) return std::filesystem::exists(file, error);
  return type != file_type::regular && type != file_type::not_found;
}

}  // namespace

std::error_code write_whole(const path& file, std::string_view text) {
  if (is_written_in_place(file)) return write(file, text);
  const path made = beside(file);
  std::error_code error = write(made, text);
  if (!error) std::filesystem::rename(made, file, error);
  std::error_code ignored;
  if (error) std::filesystem::remove(made, ignored);
  return error;
}

std::error_code probe_write(const path& file) {
  if (is_written_in_place(file)) {
    std::error_code error;
    if (std::filesystem::is_directory(file, error)) {
      return std::make_error_code(std::errc::is_a_directory);
    }
    if (::access(file.c_str(), W_OK) == 0) return {};
    return {errno, std::generic_category()};
  }
  const path made = beside(file);
  const std::error_code error = write(made, "\n");
  std::error_code removed;
  std::filesystem::remove(made, removed);
  return error ? error : removed;
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
