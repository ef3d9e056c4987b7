#pragma once

/// @file
/// Files that a command writes its result to, whole, and whether it can, asked before the work
/// whose result it is.

#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace kvarena::tools {

/// A folder for results, made where it is missing. What of it was made and is still empty goes with
/// its owner: a run without results leaves nothing behind.
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

/// Writes `text`; no error: it is there. A file, or none, is replaced in one step: whoever reads it
/// meanwhile sees all of the old or all of the new. What else `path` may name, a pipe, a device, a
/// link such as /dev/stdout, is written in its place.
std::error_code write_whole(const std::filesystem::path& path, std::string_view text);

/// Why write_whole could not write; no error: it can. Leaves the disk as it is, and opens neither
/// device nor pipe.
std::error_code probe_write(const std::filesystem::path& path);

}  // namespace kvarena::tools
