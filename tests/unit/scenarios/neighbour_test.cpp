// The scenario neighbours with a real process on a machine of our own, and both sides of the
// conversation.

#include "small_suite.hpp"

#include "scenarios/neighbour.hpp"

#include "support/text_matchers.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace kvarena::scenarios {
namespace {

const std::vector<std::string> kNeighbourProgram = {KVARENA_NEIGHBOUR_PROGRAM};

/// Where Linux lists the children of this process's first thread.
std::string list_of_children() {
  const std::string self = std::to_string(::getpid());
  return "/proc/" + self + "/task/" + self + "/children";
}

/// A machine whose memory is shared with a neighbour alone, so that the scenario of neighbours does
/// not depend on who else runs. It has so much, less what the resident memory of this process's
/// children takes.
class SharedMachine final : public HostMemorySource {
 public:
  explicit SharedMachine(std::uint64_t bytes) : bytes_(bytes) {}
  void* allocate(std::uint64_t bytes, std::uint64_t alignment_bytes,
                 std::int32_t* native_error) noexcept override {
    return system_memory_source().allocate(bytes, alignment_bytes, native_error);
  }
  void free(void* pointer, std::uint64_t bytes) noexcept override {
    system_memory_source().free(pointer, bytes);
  }
  std::uint64_t available_bytes() const noexcept override {
    std::ifstream children(list_of_children());
    std::uint64_t taken = 0;
    for (std::string pid; children >> pid;) {
      std::ifstream statm("/proc/" + pid + "/statm");
      std::uint64_t total = 0;
      std::uint64_t resident = 0;
      statm >> total >> resident;
      taken += resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    }
    return bytes_ - std::min(bytes_, taken);
  }

 private:
  const std::uint64_t bytes_;
};

/// Everything scaled down, with a neighbour on `machine`.
SuiteOptions neighbour_options(Device& device, HostMemorySource& machine) {
  SuiteOptions options = test::small_suite(device);
  options.neighbour_command = kNeighbourProgram;
  options.machine = &machine;
  return options;
}

bool check_failed(const ScenarioReport& report, std::string_view what) {
  const Check check = test::check_of(report, what);
  return !check.what.empty() && !check.held;
}

TEST(NeighboursScenario, PassesWithARealProcess) {
  if (!std::ifstream(list_of_children())) GTEST_SKIP() << "no " << list_of_children();
  const auto device = test::small_host(256 << 20);
  SharedMachine machine(std::uint64_t{1} << 30);
  const ScenarioReport report = test::report_of(neighbour_options(*device, machine), "neighbours");
  EXPECT_TRUE(report.passed()) << test::failures_of(report);
  // An eighth of what the machine has free is more than a quarter of the limit.
  EXPECT_GT(test::figure_of(report, "neighbour_share_bytes"), 64 << 20);
  EXPECT_LE(test::figure_of(report, "neighbour_share_bytes"), 128 << 20);
  EXPECT_LT(test::figure_of(report, "creation_available_bytes"),
            test::figure_of(report, "creation_required_bytes"));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
  EXPECT_EQ(errno, ECHILD);
}

TEST(NeighboursScenario, NeedsWhatItRequiresAndNoMore) {
  if (!std::ifstream(list_of_children())) GTEST_SKIP() << "no " << list_of_children();
  const auto probe = test::small_host();
  SharedMachine machine(std::uint64_t{1} << 30);
  SuiteOptions options = neighbour_options(*probe, machine);
  options.scenarios = {"neighbours"};
  std::int64_t required = 0;
  for (const Scenario& scenario : scenarios()) {
    if (scenario.name != "neighbours") continue;
    required = scenario.required_bytes({.options = options, .scenario = scenario.name}).value();
  }
  const auto enough = test::small_host(static_cast<std::uint64_t>(required));
  options.device = enough.get();
  const ScenarioReport report = test::report_of(options, "neighbours");
  EXPECT_TRUE(report.passed()) << test::failures_of(report);
  const auto small = test::small_host(static_cast<std::uint64_t>(required - 1));
  options.device = small.get();
  EXPECT_FALSE(run_suite(options, nullptr).has_report);
}

/// Takes memory only on paper.
TEST(NeighboursScenario, FindsANeighbourThatTakesNothing) {
  const auto device = test::small_host(256 << 20);
  SharedMachine machine(std::uint64_t{1} << 30);
  SuiteOptions options = neighbour_options(*device, machine);
  options.neighbour_command.emplace_back("--untouched");
  const ScenarioReport report = test::report_of(options, "neighbours");
  EXPECT_TRUE(report.failed());
  EXPECT_TRUE(check_failed(report, "free bytes that the neighbour took, as we see it"));
  EXPECT_TRUE(check_failed(report, "growth of drift that is not ours"));
  EXPECT_TRUE(check_failed(report, "creation: refused with"));
}

TEST(NeighboursScenario, IsSkippedWithoutAProgram) {
  const auto device = test::small_host();
  const ScenarioReport report = test::report_of(test::small_suite(*device), "neighbours");
  EXPECT_FALSE(report.failed());
  EXPECT_EQ(report.skipped, "there is no program to be the neighbour");
}

TEST(NeighboursScenario, FailsWhenTheNeighbourDies) {
  const auto device = test::small_host(256 << 20);
  SharedMachine machine(std::uint64_t{1} << 30);
  SuiteOptions options = neighbour_options(*device, machine);
  options.neighbour_command.emplace_back("--die");
  const ScenarioReport report = test::report_of(options, "neighbours");
  EXPECT_TRUE(report.failed());
  ASSERT_TRUE(report.ended);
  EXPECT_EQ(report.ended->end, RunEnd::environment);
  EXPECT_FALSE(report.ended->why.advice.empty());
}

// ---- our side ----------------------------------------------------------------------------------

TEST(Neighbour, TakesFreesAndQuits) {
  std::unique_ptr<Neighbour> neighbour;
  ASSERT_FALSE(Neighbour::start(kNeighbourProgram, &neighbour));
  EXPECT_FALSE(neighbour->take(4096));
  EXPECT_FALSE(neighbour->take(1 << 20));
  EXPECT_EQ(neighbour->held_bytes(), (1 << 20) + 4096);
  EXPECT_FALSE(neighbour->free());
  EXPECT_EQ(neighbour->held_bytes(), 0);
  EXPECT_FALSE(neighbour->quit());
}

TEST(Neighbour, IsGoneWithItsObject) {
  std::unique_ptr<Neighbour> neighbour;
  ASSERT_FALSE(Neighbour::start(kNeighbourProgram, &neighbour));
  const pid_t pid = neighbour->pid();
  ASSERT_FALSE(neighbour->take(1 << 20));
  neighbour.reset();
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(Neighbour, RefusalComesInItsWords) {
  std::unique_ptr<Neighbour> neighbour;
  ASSERT_FALSE(Neighbour::start(kNeighbourProgram, &neighbour));
  const MaybeFailure failure = neighbour->take(std::int64_t{1} << 47);
  ASSERT_TRUE(failure);
  EXPECT_HAS(failure->why.found, "refused 140737488355328 ");
}

TEST(Neighbour, FailuresToStartAreInWords) {
  std::unique_ptr<Neighbour> neighbour;
  const auto happened = [&neighbour](const std::vector<std::string>& command) {
    const MaybeFailure failure = Neighbour::start(command, &neighbour);
    return failure ? failure->why.found : "started";
  };
  EXPECT_EQ(happened({"/no/such/program"}), "/no/such/program: No such file or directory");
  EXPECT_EQ(happened({"/bin/false"}),
            "the neighbour closed the connection; it ended with exit code 1");
  EXPECT_EQ(happened({"/bin/sh", "-c", "echo hello; read line"}),
            "the neighbour said 'hello' and not 'ready'; it ended with signal 9");
  EXPECT_EQ(neighbour, nullptr);
}

/// A process starts a neighbour and dies at once; the neighbour ends by itself.
TEST(Neighbour, DoesNotOutliveWhoStartedIt) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  std::FILE* parent = ::popen(KVARENA_NEIGHBOUR_PROGRAM " --orphan", "r");
  ASSERT_NE(parent, nullptr);
  int pid = 0;
  ASSERT_EQ(std::fscanf(parent, "%d", &pid), 1);
  ::pclose(parent);
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);  // it is our child now; waits until it has ended
  EXPECT_EQ(status, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

// ---- its side ----------------------------------------------------------------------------------

std::string converse(Device& device, const std::string& lines, bool* understood = nullptr) {
  std::istringstream in(lines);
  std::ostringstream out;
  const bool all = serve_neighbour(device, in, out);
  if (understood != nullptr) *understood = all;
  EXPECT_EQ(device.tracker().breakdown().total.count, 0U);
  return out.str();
}

TEST(NeighbourServer, AnswersALineAtATime) {
  const auto device = test::small_host(1 << 20);
  EXPECT_EQ(converse(*device, "take 4096\ntake 8192\nfree\ntake 1\nquit\ntake 5\n"),
            "ready\ntook 4096\ntook 12288\nfreed 12288\ntook 1\n");
  EXPECT_EQ(converse(*device, "take 4096\n"), "ready\ntook 4096\n");
  EXPECT_EQ(converse(*device, "take 4096\ntake 1048576\n"),
            "ready\ntook 4096\nrefused 1048576 1044480\n");
}

TEST(NeighbourServer, StopsAtALineItDoesNotKnow) {
  const auto device = test::small_host(1 << 20);
  for (const char* line : {"", "take", "take x", "take 0", "take -1", "take 5x", "tak 5",
                           "take 99999999999999999999", "free 1"}) {
    bool understood = true;
    EXPECT_EQ(converse(*device, std::string(line) + "\nfree\n", &understood), "ready\nunknown\n");
    EXPECT_FALSE(understood) << line;
  }
}

}  // namespace
}  // namespace kvarena::scenarios
