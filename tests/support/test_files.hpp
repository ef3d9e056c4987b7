#pragma once

/// @file
/// Files for tests: temporary ones, and the trace folder when it is there.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <unistd.h>

namespace kvarena::test {

/// A file with given content that is gone at the end of the test.
class TempFile {
 public:
  explicit TempFile(std::string_view content, std::string_view suffix = ".txt") {
    static int number = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("kvarena-test-" + std::to_string(::getpid()) + "-" + std::to_string(number++) +
             std::string(suffix));
    std::ofstream(path_, std::ios::binary) << content;
    using std::filesystem::perms;  // for its owner alone, as files of tokens must be
    std::filesystem::permissions(path_, perms::owner_read | perms::owner_write);
  }
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  std::string path() const { return path_.string(); }
  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::filesystem::path path_;
};

/// The folder of traces that KVARENA_DATA_DIR names; "" when there is none.
inline std::string data_dir() {
  const char* path = std::getenv("KVARENA_DATA_DIR");
  return path != nullptr && std::filesystem::is_directory(path) ? path : std::string{};
}

}  // namespace kvarena::test

/// Skips a test that needs the trace folder where there is none.
#define KVARENA_REQUIRE_DATA()           \
  if (kvarena::test::data_dir().empty()) \
  GTEST_SKIP() << "no trace folder: set KVARENA_DATA_DIR to the folder that has reference.json"
