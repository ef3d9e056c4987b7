// Whether something can be written, and that asking leaves no trace.

#include "tools/write_probe.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvarena::tools {
namespace {

using std::filesystem::path;

class WriteProbe : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "kvarena-probe-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::ptrdiff_t entries() const {
    return std::distance(std::filesystem::recursive_directory_iterator(root_), {});
  }
  static void write(const path& file, const std::string& text) { std::ofstream(file) << text; }
  static std::string content_of(const path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  path root_;
};

TEST_F(WriteProbe, AFileThatIsNotThereIsNotThereAfterwards) {
  EXPECT_FALSE(probe_file(root_ / "new"));
  EXPECT_FALSE(probe_replacement(root_ / "new"));
  EXPECT_EQ(entries(), 0);
}

TEST_F(WriteProbe, AFileThatIsThereKeepsItsContent) {
  write(root_ / "old", "content");
  EXPECT_FALSE(probe_file(root_ / "old"));
  EXPECT_FALSE(probe_replacement(root_ / "old"));
  EXPECT_EQ(content_of(root_ / "old"), "content");
  EXPECT_EQ(entries(), 1);
}

TEST_F(WriteProbe, WhatCannotBeWrittenIsSaid) {
  EXPECT_EQ(probe_file(root_), std::errc::is_a_directory);
  EXPECT_EQ(probe_replacement(root_), std::errc::is_a_directory);
  EXPECT_EQ(probe_file(root_ / "missing" / "file"), std::errc::no_such_file_or_directory);
  EXPECT_TRUE(probe_file("/proc/kvarena"));
  EXPECT_TRUE(probe_replacement("/proc/kvarena"));
  EXPECT_FALSE(probe_file("/dev/null"));
}

TEST_F(WriteProbe, AFolderWithoutResultsGoes) {
  {
    ResultFolder folder;
    EXPECT_FALSE(folder.make(root_ / "a" / "b" / ""));
    EXPECT_TRUE(std::filesystem::is_directory(root_ / "a" / "b"));
  }
  EXPECT_EQ(entries(), 0);
}

TEST_F(WriteProbe, AFolderWithResultsStays) {
  {
    ResultFolder folder;
    EXPECT_FALSE(folder.make(root_ / "a" / "b"));
    write(root_ / "a" / "b" / "result", "content");
  }
  EXPECT_EQ(content_of(root_ / "a" / "b" / "result"), "content");
}

TEST_F(WriteProbe, AFolderThatWasThereStays) {
  std::filesystem::create_directory(root_ / "a");
  {
    ResultFolder folder;
    EXPECT_FALSE(folder.make(root_ / "a"));
  }
  EXPECT_TRUE(std::filesystem::is_directory(root_ / "a"));
}

TEST_F(WriteProbe, WhatWasMadeOnTheWayToAnErrorGoesToo) {
  write(root_ / "file", "content");
  {
    ResultFolder folder;
    EXPECT_EQ(folder.make(root_ / "file" / "x"), std::errc::not_a_directory);
    ResultFolder in_proc;
    EXPECT_TRUE(in_proc.make("/proc/kvarena/x"));
  }
  EXPECT_EQ(entries(), 1);
}

}  // namespace
}  // namespace kvarena::tools
