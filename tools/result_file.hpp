#pragma once

/// @file
/// Files for a command's results. A file appears complete or not at all. A command can check before
/// its work whether it can write the file.

#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

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

}  // namespace kvarena::tools
