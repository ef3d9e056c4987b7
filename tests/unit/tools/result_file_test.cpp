// Files that are there in full or as they were, and that asking whether they can be leaves no
// trace.

#include "tools/result_file.hpp"
#include "unit/tools/command_run.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvarena::tools {
namespace {

using std::filesystem::path;

class ResultFiles : public testing::Test {
 protected:
  std::ptrdiff_t entries() const {
    return std::distance(std::filesystem::recursive_directory_iterator(root_), {});
  }
  static void write(const path& file, const std::string& text) { std::ofstream(file) << text; }
  static std::string content_of(const path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const ConfigWorld world_;
  const path root_ = world_.path("work/inner");
};

TEST_F(ResultFiles, AFileThatIsNotThereIsNotThereAfterwards) {
  EXPECT_FALSE(probe_write(root_ / "new"));
  EXPECT_EQ(entries(), 0);
}

TEST_F(ResultFiles, AFileThatIsThereKeepsItsContent) {
  write(root_ / "old", "content");
  EXPECT_FALSE(probe_write(root_ / "old"));
  EXPECT_EQ(content_of(root_ / "old"), "content");
  EXPECT_EQ(entries(), 1);
}

TEST_F(ResultFiles, WhatCannotBeWrittenIsSaid) {
  EXPECT_EQ(probe_write(root_), std::errc::is_a_directory);
  EXPECT_EQ(probe_write(root_ / "missing" / "file"), std::errc::no_such_file_or_directory);
  EXPECT_TRUE(probe_write("/proc/kvarena"));
  EXPECT_FALSE(probe_write("/dev/null"));
}

TEST_F(ResultFiles, IsReplacedInOneStep) {
  const path file = root_ / "result";
  EXPECT_FALSE(write_whole(file, "the old text"));
  std::ifstream reader(file);
  EXPECT_FALSE(write_whole(file, "new"));
  EXPECT_EQ(content_of(file), "new");
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(reader), {}}), "the old text");
  EXPECT_EQ(entries(), 1);
}

TEST_F(ResultFiles, StaysAsItWasUntilTheNewOneIsWhole) {
  const path file = root_ / "result";
  write(file, "old");
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  {
    ResultFile never;
    ASSERT_FALSE(never.open(file));
    write(never.place(), "half of the n");
    EXPECT_EQ(content_of(file), "old");
  }
  EXPECT_EQ(entries(), 1) << "what came to nothing is gone";
  ResultFile whole;
  ASSERT_FALSE(whole.open(file));
  write(whole.place(), "new");
  EXPECT_EQ(content_of(file), "old");
  ASSERT_FALSE(whole.commit());
  EXPECT_EQ(content_of(file), "new");
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms::owner_read);
  EXPECT_EQ(entries(), 1);
}

TEST_F(ResultFiles, ALinkStaysAndWhatItNamesIsReplaced) {
  write(root_ / "target", "a longer old text");
  std::filesystem::create_symlink("target", root_ / "link");
  std::ifstream reader(root_ / "target");
  EXPECT_FALSE(probe_write(root_ / "link"));
  EXPECT_FALSE(write_whole(root_ / "link", "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(root_ / "link"));
  EXPECT_EQ(content_of(root_ / "target"), "new");
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(reader), {}}), "a longer old text");
  std::filesystem::create_symlink("loop", root_ / "loop");
  EXPECT_EQ(write_whole(root_ / "loop", "new"), std::errc::too_many_symbolic_link_levels);
}

TEST_F(ResultFiles, APipeIsWrittenInItsPlace) {
  const path pipe = root_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_FALSE(probe_write(pipe));
  EXPECT_FALSE(write_whole(pipe, "text"));
  std::string read(8, '\0');
  read.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(reader, read.data(), 8), 0)));
  EXPECT_EQ(read, "text");
  ::close(reader);
}

TEST_F(ResultFiles, WhatCannotBeWrittenStaysAsItWas) {
  EXPECT_EQ(write_whole("/dev/full", "text"), std::errc::no_space_on_device);
  EXPECT_EQ(write_whole(root_, "text"), std::errc::is_a_directory);
  EXPECT_EQ(write_whole(root_ / "missing" / "file", ""), std::errc::no_such_file_or_directory);
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(ResultFiles, AFolderWithoutResultsGoes) {
  {
    ResultFolder folder;
    EXPECT_FALSE(folder.make(root_ / "a" / "b" / ""));
    EXPECT_TRUE(std::filesystem::is_directory(root_ / "a" / "b"));
  }
  EXPECT_EQ(entries(), 0);
}

TEST_F(ResultFiles, AFolderWithResultsStays) {
  {
    ResultFolder folder;
    EXPECT_FALSE(folder.make(root_ / "a" / "b"));
    write(root_ / "a" / "b" / "result", "content");
  }
  EXPECT_EQ(content_of(root_ / "a" / "b" / "result"), "content");
}

TEST_F(ResultFiles, AFolderThatWasThereStays) {
  std::filesystem::create_directory(root_ / "a");
  {
    ResultFolder folder;
    EXPECT_FALSE(folder.make(root_ / "a"));
  }
  EXPECT_TRUE(std::filesystem::is_directory(root_ / "a"));
}

TEST_F(ResultFiles, WhatWasMadeOnTheWayToAnErrorGoesToo) {
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
