// Files that are there in full or as they were, and that asking whether they can be leaves no
// trace.

#include "tools/result_file.hpp"
#include "unit/tools/command_run.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

  /// What `work` returned in a process of its own.
  template <class Work>
  static int in_child(Work work) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work());
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static constexpr uid_t kSomebody = 12345;
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
    (never.stream() << "half of the n").flush();
    EXPECT_EQ(content_of(file), "old");
  }
  EXPECT_EQ(entries(), 1) << "what came to nothing is gone";
  ResultFile whole;
  ASSERT_FALSE(whole.open(file));
  whole.stream() << "new";
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

TEST_F(ResultFiles, ALinkLeadsWhereTheSystemSays) {
  std::filesystem::create_directories(root_ / "real/inner");
  std::filesystem::create_directory_symlink("real/inner", root_ / "d");
  std::filesystem::create_symlink("../target", root_ / "real/inner/link");
  EXPECT_FALSE(write_whole(root_ / "d/link", "new"));
  EXPECT_EQ(content_of(root_ / "real/target"), "new");
  EXPECT_FALSE(std::filesystem::exists(root_ / "target"));
}

TEST_F(ResultFiles, AFileInDevIsAFile) {
  const std::string file = "/dev/shm/kvarena-test-" + std::to_string(::getpid());
  EXPECT_FALSE(write_whole(file, "the old text"));
  std::ifstream reader(file);
  EXPECT_FALSE(write_whole(file, "new"));
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(reader), {}}), "the old text");
  EXPECT_EQ(content_of(file), "new");
  std::filesystem::remove(file);
}

TEST_F(ResultFiles, NamesMayBeAsLongAsTheSystemTakesAndTemporaryOnesAreNew) {
  const std::string stale = ".kvarena-" + std::to_string(::getpid()) + "-0.tmp";
  std::filesystem::create_symlink("victim", root_ / stale);
  const path file = root_ / std::string(255, 'n');
  EXPECT_FALSE(probe_write(file));
  EXPECT_FALSE(write_whole(file, "text"));
  EXPECT_EQ(content_of(file), "text");
  EXPECT_EQ(entries(), 2);
  ResultFile first;
  ResultFile second;
  ASSERT_FALSE(first.open(file));
  ASSERT_FALSE(second.open(file));
  first.stream() << "first";
  second.stream() << "second";
  EXPECT_FALSE(first.commit());
  EXPECT_EQ(content_of(file), "first");
  EXPECT_FALSE(second.commit());
  EXPECT_EQ(content_of(file), "second");
}

TEST_F(ResultFiles, AFileKeepsItsOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, who can give files away";
  write(root_ / "file", "old");
  ASSERT_EQ(::chown((root_ / "file").c_str(), kSomebody, kSomebody), 0);
  ASSERT_EQ(::chmod((root_ / "file").c_str(), 0600), 0);
  EXPECT_FALSE(write_whole(root_ / "file", "new"));
  EXPECT_EQ(content_of(root_ / "file"), "new");
  struct stat status {};
  ASSERT_EQ(::stat((root_ / "file").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, kSomebody);
  EXPECT_EQ(status.st_gid, kSomebody);
  EXPECT_EQ(status.st_mode & 07777, 0600U);
}

TEST_F(ResultFiles, AnotherUsersFileIsWrittenInItsPlaceOrRefusedBefore) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, who can be others";
  write(root_ / "open", "old");
  write(root_ / "closed", "old");
  std::filesystem::permissions(root_ / "open", std::filesystem::perms(0666));
  for (const mode_t mode : {0777U, 01777U}) {
    ASSERT_EQ(::chmod(root_.c_str(), mode), 0);
    EXPECT_EQ(in_child([&] {
                if (::setresuid(kSomebody, kSomebody, kSomebody) != 0) return 1;
                if (probe_write(root_ / "open") || write_whole(root_ / "open", "new")) return 2;
                const bool is_refused =
                    probe_write(root_ / "closed") && write_whole(root_ / "closed", "new");
                return is_refused ? 0 : 3;
              }),
              0);
    struct stat status {};
    ASSERT_EQ(::stat((root_ / "open").c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, 0U);
    EXPECT_EQ(content_of(root_ / "open"), "new");
    EXPECT_EQ(content_of(root_ / "closed"), "old");
    EXPECT_EQ(entries(), 2);
    write(root_ / "open", "old");
  }
}

TEST_F(ResultFiles, WhatIsMountedIsWrittenInItsPlace) {
  write(root_ / "file", "a longer old text");
  write(root_ / "source", "");
  const int code = in_child([&] {
    const path file = root_ / "file";
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", "", MS_REC | MS_PRIVATE, "") != 0 ||
        ::mount((root_ / "source").c_str(), file.c_str(), "", MS_BIND, "") != 0) {
      return 77;
    }
    return probe_write(file) || write_whole(file, "new") ? 1 : 0;
  });
  if (code == 77) GTEST_SKIP() << "needs the right to mount";
  EXPECT_EQ(code, 0);
  EXPECT_EQ(content_of(root_ / "source"), "new");
  EXPECT_EQ(content_of(root_ / "file"), "a longer old text");
  EXPECT_EQ(entries(), 2);
}

TEST_F(ResultFiles, WhatCannotTakeItsNameIsLeft) {
  ResultFile result;
  ASSERT_FALSE(result.open(root_ / "file"));
  result.stream() << "minutes of work";
  std::filesystem::create_directory(root_ / "file");
  EXPECT_EQ(result.commit(), std::errc::is_a_directory);
  EXPECT_EQ(content_of(result.left_at()), "minutes of work");
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
