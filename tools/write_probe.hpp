#pragma once

/// @file
/// Whether what a command is to write can be written, asked before the work whose result it is.
/// Every probe leaves the disk as it found it.

#include <filesystem>
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

/// Why `path` could not be written; no error: it can. A device or a pipe is not opened.
std::error_code probe_file(const std::filesystem::path& path);

/// The same of a file that is written beside `path` and then moved there.
std::error_code probe_replacement(const std::filesystem::path& path);

}  // namespace kvarena::tools
