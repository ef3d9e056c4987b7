// What `kvarena pressure` has for tests: planted faults, and the neighbour's own command.

#include "command_run.hpp"

#include "scenarios/neighbour.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace kvarena::tools {
namespace {

TEST(PressureSwitches, HelpDoesNotShowThem) {
  EXPECT_FALSE(contains(run({"pressure", "--help"}).out, "--fault"));
  EXPECT_FALSE(contains(run({"--help"}).out, "pressure-neighbour"));
}

TEST(PressureSwitches, UnknownFaultIsWrongUsage) {
  const Outcome outcome = run({"pressure", "--device", "cpu", "--fault", "fire"});
  EXPECT_EQ(outcome.code, ExitCode::usage);
  EXPECT_TRUE(contains(outcome.err, "fire")) << outcome.err;
}

/// Weights of 1 GB, and memory for one instance.
TEST(PressureSwitches, APlantedFaultEndsWithExitCode1) {
  constexpr std::uint64_t kNeeded = std::uint64_t{4} << 30;
  if (system_memory_source().available_bytes() < kNeeded) GTEST_SKIP() << "less than 4 GiB";
  std::vector<std::string> arguments = {"pressure",     "--device",   "cpu",
                                        "--memory",     "2GiB",       "--model",
                                        "Qwen2.5-0.5B", "--scenario", "allocation-failure"};
  const Outcome sound = run(arguments);
  EXPECT_EQ(sound.code, ExitCode::ok) << sound.out << sound.err;
  arguments.insert(arguments.end(), {"--fault", "byte_count"});
  const Outcome faulty = run(arguments);
  EXPECT_EQ(faulty.code, ExitCode::check_failed) << faulty.out << faulty.err;
  EXPECT_TRUE(contains(faulty.out, "bytes required")) << faulty.out;
}

TEST(PressureNeighbourCommand, TakesFreesAndQuits) {
  std::unique_ptr<replay::pressure::Neighbour> neighbour;
  const auto failed = replay::pressure::Neighbour::start(
      {KVARENA_PROGRAM, "pressure-neighbour", "--device", "cpu"}, &neighbour);
  ASSERT_FALSE(failed) << failed->happened;
  EXPECT_FALSE(neighbour->take(1 << 20));
  EXPECT_FALSE(neighbour->free());
  EXPECT_FALSE(neighbour->quit());
}

}  // namespace
}  // namespace kvarena::tools
