// Device tables on a GPU: the arrays read back after every step equal the tables, whether the step
// was launched or replayed, alone or with others in flight; and a step that was lost, withdrawn or
// launched twice leaves its own rows or none.

#include "support/gpu.hpp"
#include "support/status_matchers.hpp"
#include "unit/step/step_game.hpp"

#include "kernels/scatter_step/staged_step.h"
#include "step/device_tables.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

using test::ExpectedStep;
using test::nothing;
using test::StepArrays;
using test::StepGame;

/// A launch that was captured once.
class Replay {
 public:
  Replay(DeviceTables& tables, StreamId stream, void* native)
      : native_(static_cast<cudaStream_t>(native)) {
    EXPECT_EQ(cudaStreamBeginCapture(native_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_OK(tables.record(stream));
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(native_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec_, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  ~Replay() { EXPECT_EQ(cudaGraphExecDestroy(exec_), cudaSuccess); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  void run() { ASSERT_EQ(cudaGraphLaunch(exec_, native_), cudaSuccess); }

 private:
  cudaStream_t native_;
  cudaGraphExec_t exec_ = nullptr;
};

/// Device tables of a GPU and images of their memory, each read back into pinned memory.
class GpuTables {
 public:
  GpuTables(CudaDevice& device, const DeviceTablesOptions& options)
      : plan(plan_memory(options)),
        tables(DeviceTables::create(device, options).value()),
        stream(device.create_stream().value()),
        device_(device) {
    for (std::int32_t i = 0; i < options.limits.steps_in_flight; ++i) {
      void* image = device
                        .allocate({.bytes = static_cast<std::uint64_t>(plan.device_bytes),
                                   .purpose = MemoryPurpose::intermediate_buffers,
                                   .kind = MemoryKind::pinned_staging})
                        .value();
      images_.push_back(static_cast<std::byte*>(image));
      events_.push_back(device.create_event().value());
    }
  }
  ~GpuTables() {
    EXPECT_OK(device_.destroy_stream(stream));
    for (std::byte* image : images_) EXPECT_OK(device_.free(image));
    for (const EventId event : events_) EXPECT_OK(device_.destroy_event(event));
  }
  GpuTables(const GpuTables&) = delete;
  GpuTables& operator=(const GpuTables&) = delete;

  /// Launches the graph of a recorded launch.
  void replay() {
    if (!replay_) replay_.emplace(tables, stream, device_.native_stream(stream).value());
    replay_->run();
  }
  /// Queues the launch, captured or not, and the reading back.
  void launch(std::size_t image, bool replayed) {
    if (replayed) {
      ASSERT_OK(tables.expect(stream));
      replay();
    } else {
      ASSERT_OK(tables.launch(stream));
    }
    read_back(image);
  }
  void read_back(std::size_t image) {
    ASSERT_OK(device_.copy(images_[image], tables.view().block_tables,
                           static_cast<std::uint64_t>(plan.device_bytes), stream));
    ASSERT_OK(device_.record(events_[image], stream));
  }
  /// What an image was once its reading back has completed.
  StepArrays wait(std::size_t image) {
    EXPECT_OK(device_.synchronize(events_[image]));
    return StepArrays::of(plan, images_[image]);
  }
  /// Replays without naming a step, and compares.
  std::string replayed_again(const ExpectedStep& step) {
    replay();
    read_back(0);
    return step.difference(wait(0));
  }
  /// Launches and compares.
  std::string launched(const ExpectedStep& step, bool replayed) {
    launch(0, replayed);
    return step.difference(wait(0));
  }

  DeviceTablesMemory plan;
  DeviceTables tables;
  StreamId stream;

 private:
  CudaDevice& device_;
  std::vector<std::byte*> images_;
  std::vector<EventId> events_;
  std::optional<Replay> replay_;
};

class DeviceTablesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_GPU();
    device = test::make_cuda();
    ASSERT_NE(device, nullptr);
  }
  void TearDown() override {
    if (device == nullptr) return;
    const MemoryBreakdown left = device->tracker().breakdown();
    EXPECT_EQ(left.total.bytes + left.staging.bytes, 0U) << "device tables free their memory";
  }

  /// Steps one by one; some are staged and never launched, some launches find no step.
  void play(const test::StepGameOptions& options, int steps, bool replayed) {
    StepGame game(options);
    GpuTables gpu(*device, options.tables);
    std::uint64_t misses = 0;
    for (int step = 0; step < steps; ++step) {
      const std::string where =
          "seed " + std::to_string(options.seed) + " step " + std::to_string(step);
      const AppendResult appended = game.next();
      ASSERT_OK(gpu.tables.stage(game.tables(), appended)) << where;
      if (game.one_in(8)) continue;
      ASSERT_EQ(gpu.launched(game.expected(), replayed), "") << where;
      gpu.tables.advance();
      ASSERT_EQ(gpu.tables.misses(), misses) << where;
      if (!game.one_in(16)) continue;
      ASSERT_EQ(gpu.launched(nothing(), replayed), "") << "a miss, " << where;
      ASSERT_EQ(gpu.tables.misses(), ++misses) << where;
    }
  }

  /// Waits for nothing but the step that used the ring's slot last.
  void play_in_flight(std::int32_t in_flight, bool replayed) {
    const DeviceTablesOptions options = test::small_tables(3, in_flight);
    StepGame game({.seed = 11, .tables = options});
    GpuTables gpu(*device, options);
    std::deque<ExpectedStep> queued;
    std::size_t oldest = 0;
    const auto k = static_cast<std::size_t>(in_flight);
    const auto check_oldest = [&] {
      const std::string difference = queued.front().difference(gpu.wait(oldest % k));
      queued.pop_front();
      ASSERT_EQ(difference, "") << "step " << oldest;
      ++oldest;
    };
    for (int step = 0; step < 2000; ++step) {
      if (queued.size() == k) {
        ASSERT_NO_FATAL_FAILURE(check_oldest());
      }
      const AppendResult appended = game.next();
      ASSERT_OK(gpu.tables.stage(game.tables(), appended));
      gpu.launch((oldest + queued.size()) % k, replayed);
      queued.push_back(game.expected());
      gpu.tables.advance();
    }
    while (!queued.empty()) ASSERT_NO_FATAL_FAILURE(check_oldest());
    EXPECT_EQ(gpu.tables.misses(), 0U);
  }

  std::unique_ptr<CudaDevice> device;
};

TEST_F(DeviceTablesTest, ArraysEqualTheTablesAfterEveryStep) {
  for (const std::int32_t block_size : {1, 3, 16}) {
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      play({.seed = seed, .tables = test::small_tables(block_size)}, 1500, false);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(DeviceTablesTest, ACapturedLaunchServesEveryStepWhileTheTablesChange) {
  for (const std::int32_t block_size : {1, 16}) {
    play({.seed = 5, .tables = test::small_tables(block_size, 3)}, 1500, true);
    if (HasFatalFailure()) return;
  }
}

TEST_F(DeviceTablesTest, TablesThatShareASmallPoolAreFoundWhereverTheyLie) {
  for (const std::int32_t block_size : {1, 3}) {
    for (const bool replayed : {false, true}) {
      play({.seed = 21, .num_blocks = 900, .tables = test::pooled_tables(block_size, 3)}, 1500,
           replayed);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(DeviceTablesTest, StepsInFlightReadTheirOwnSlots) {
  for (const std::int32_t in_flight : {1, 2, 4}) {
    play_in_flight(in_flight, false);
    if (HasFatalFailure()) return;
    play_in_flight(in_flight, true);
    if (HasFatalFailure()) return;
  }
}

// More rows than a tile, more changed entries than a chunk, more tokens than threads.
TEST_F(DeviceTablesTest, LargeSteps) { play(test::large_game(), 40, false); }

/// Steps of one game, replayed by a graph unless the test says otherwise.
class DeviceTablesFaults : public DeviceTablesTest {
 protected:
  void SetUp() override {
    DeviceTablesTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    game.emplace(test::StepGameOptions{.seed = 9, .tables = options});
    gpu.emplace(*device, options);
  }
  void TearDown() override {
    gpu.reset();
    DeviceTablesTest::TearDown();
  }
  ExpectedStep stage() {
    const AppendResult appended = game->next();
    EXPECT_OK(gpu->tables.stage(game->tables(), appended));
    return game->expected();
  }
  void expect_right_step(bool replayed = true) {
    const std::uint64_t misses = gpu->tables.misses();
    const ExpectedStep step = stage();
    EXPECT_EQ(gpu->launched(step, replayed), "");
    gpu->tables.advance();
    EXPECT_EQ(gpu->tables.misses(), misses);
    EXPECT_EQ(gpu->tables.taken_serial(), gpu->tables.staged_serial());
  }

  DeviceTablesOptions options = test::small_tables(4, 3);
  std::optional<StepGame> game;
  std::optional<GpuTables> gpu;
};

TEST_F(DeviceTablesFaults, AGraphThatWasNotLaunchedMakesEveryLaterOneAMissUntilTheResync) {
  for (int round = 0; round < 20; ++round) {
    expect_right_step();
    static_cast<void>(stage());
    ASSERT_OK(gpu->tables.expect(gpu->stream));
    gpu->tables.advance();  // its graph has not been launched
    const std::uint64_t misses = gpu->tables.misses();
    for (std::uint64_t i = 1; i < 5; ++i) {
      static_cast<void>(stage());
      EXPECT_EQ(gpu->launched(nothing(), i % 2 == 0), "") << "round " << round;
      gpu->tables.advance();
      EXPECT_EQ(gpu->tables.misses(), misses + i);
      EXPECT_LT(gpu->tables.taken_serial(), gpu->tables.staged_serial());
    }
    gpu->tables.resync(game->tables());
    for (int i = 0; i < 5; ++i) expect_right_step(i % 2 == 0);
  }
}

TEST_F(DeviceTablesFaults, AGraphLaunchedTwiceForAStepSkipsEveryRowTheSecondTime) {
  for (std::uint64_t misses = 1; misses < 20; ++misses) {
    const ExpectedStep step = stage();
    EXPECT_EQ(gpu->launched(step, true), "");
    EXPECT_EQ(gpu->replayed_again(nothing()), "");
    gpu->tables.advance();
    EXPECT_EQ(gpu->replayed_again(nothing()), "") << "and after the step";
    EXPECT_EQ(gpu->tables.misses(), 2 * misses);
  }
}

TEST_F(DeviceTablesFaults, AWithdrawnStepIsNotTakenAndTheNextOneIs) {
  for (std::uint64_t misses = 1; misses < 20; ++misses) {
    static_cast<void>(stage());
    ASSERT_OK(gpu->tables.expect(gpu->stream));
    gpu->tables.withdraw(game->tables());
    EXPECT_EQ(gpu->replayed_again(nothing()), "");
    EXPECT_EQ(gpu->tables.misses(), misses);
    expect_right_step(misses % 2 == 0);
  }
}

// The stream is never waited for: names of steps and launches keep their order by themselves.
TEST_F(DeviceTablesFaults, StepsNamedWhileOthersAreInFlightKeepTheirOrder) {
  for (int round = 0; round < 50; ++round) {
    std::deque<ExpectedStep> queued;
    for (std::size_t i = 0; i < 3; ++i) {
      queued.push_back(stage());
      gpu->launch(i, true);
      if (i == 1) gpu->replay();  // a second time
      gpu->tables.advance();
    }
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(queued[i].difference(gpu->wait(i)), "") << "round " << round;
    }
  }
  EXPECT_EQ(gpu->tables.misses(), 50U);
}

TEST_F(DeviceTablesTest, EveryArrayKeepsItsAddressAndBeginsSkipped) {
  const DeviceTablesOptions options = test::small_tables(16);
  GpuTables gpu(*device, options);
  const DeviceStepView view = gpu.tables.view();
  EXPECT_EQ(view.table_stride, kernels::StepShape::kGranule);
  ASSERT_EQ(gpu.launched(nothing(), false), "") << "before the first step";
  EXPECT_EQ(gpu.tables.misses(), 1U);
  StepGame game({.tables = options});
  const AppendResult appended = game.next();
  ASSERT_OK(gpu.tables.stage(game.tables(), appended));
  DeviceTables moved(std::move(gpu.tables));
  EXPECT_EQ(moved.view().block_tables, view.block_tables);
  EXPECT_EQ(moved.view().slots, view.slots);
  EXPECT_OK(moved.launch(gpu.stream));
  EXPECT_OK(device->synchronize(gpu.stream));
  EXPECT_EQ(moved.misses(), 1U);
}

TEST_F(DeviceTablesTest, MemoryIsRecordedForWhatItIs) {
  const DeviceTablesOptions options = test::small_tables(16);
  const DeviceTables tables = DeviceTables::create(*device, options).value();
  const MemoryBreakdown memory = device->tracker().breakdown();
  EXPECT_EQ(memory.total.count, 1U);
  EXPECT_EQ(memory.total.bytes, DeviceTables::device_bytes(options));
  EXPECT_EQ(memory.staging.count, 1U);
  EXPECT_EQ(memory.staging.bytes, DeviceTables::staging_bytes(options));
  const auto purpose = static_cast<std::size_t>(MemoryPurpose::intermediate_buffers);
  EXPECT_EQ(memory.by_purpose[purpose].bytes, memory.total.bytes);
}

TEST_F(DeviceTablesTest, RefusalsNameWhatIsWrong) {
  DeviceTablesOptions options = test::small_tables(16);
  options.block_size_tokens = 0;
  EXPECT_REFUSES(DeviceTables::create(*device, options).status(), invalid_argument,
                 block_size_tokens);
  DeviceTables tables = DeviceTables::create(*device, test::small_tables(16)).value();
  for (const Status& status :
       {tables.launch(StreamId{999}), tables.record(StreamId{999}), tables.expect(StreamId{999})}) {
    EXPECT_FAILS(status, not_found, stream);
  }
}

}  // namespace
}  // namespace kvarena
