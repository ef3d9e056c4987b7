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

/// A file that appears whole. Somebody writes `place()`, which lies beside it; `commit` brings that
/// to the disk and gives it its name in one step. Until then, and where it never comes to that,
/// what was there before stays. What else a name may lead to, a pipe, a device, /dev/stdout, is
/// written in its place. Links are followed.
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
  /// What was written has the name given to open. Once, after whoever wrote has closed the file.
  std::error_code commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path place_;  // target_ itself where it is written in its place
};

/// Writes `text` as a ResultFile; no error: it is there.
std::error_code write_whole(const std::filesystem::path& path, std::string_view text);

/// Why write_whole could not write; no error: it can. Leaves the disk as it is, and opens neither
/// device nor pipe.
std::error_code probe_write(const std::filesystem::path& path);

}  // namespace kvarena::tools
