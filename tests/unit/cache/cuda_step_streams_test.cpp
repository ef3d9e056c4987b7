// Steps on streams in turn on a GPU: the device's own, the caller's and both default streams. Every
// output is right, call by call and by a graph that was captured from a stream of no step.

#include "support/gpu.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/cuda_graph.hpp"
#include "unit/cache/shadow_engine.hpp"
#include "unit/cache/small_cache.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <iterator>
#include <random>
#include <thread>
#include <vector>

namespace kvarena {
namespace {

using Demands = std::vector<AppendDemand>;

constexpr RecordedStep kShape{.num_rows = 6};

test::EngineOptions engine_options() {
  test::EngineOptions options;
  options.cache = {.layout = {.num_layers = 2,
                              .num_kv_heads = 2,
                              .head_dim_k = 64,
                              .dtype = DType::bf16,
                              .block_size_tokens = 16},
                   .size = {.num_blocks = 128},
                   .num_q_heads = 8,
                   .max_sequences = 8,
                   .max_sequence_tokens = 256,
                   .max_step_tokens = 256,
                   .steps_in_flight = 3};
  options.io_dtype = DType::bf16;
  options.checked_outputs = 12;
  return options;
}

Status wait_until_open(void* gate) {
  while (!*static_cast<std::atomic<bool>*>(gate)) std::this_thread::yield();
  return {};
}

class CudaStepStreams : public ::testing::Test {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_GPU();
    device_ = test::make_cuda({.max_host_functions = 1 << 16});
    ASSERT_NE(device_, nullptr);
    ASSERT_EQ(cudaStreamCreateWithFlags(&mine_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&captured_, cudaStreamNonBlocking), cudaSuccess);
    streams_ = {device_->create_stream().value(), device_->adopt_stream(nullptr).value(),
                device_->adopt_stream(mine_).value(),
                device_->adopt_stream(cudaStreamPerThread).value()};
  }
  void TearDown() override {
    device_.reset();
    if (mine_ != nullptr) {
      EXPECT_EQ(cudaStreamDestroy(mine_), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(captured_), cudaSuccess);
    }
  }
  /// A step of every sequence, which grow by a few tokens, or by one in a graph.
  Status grow(test::ShadowEngine& engine, const test::Graph* graph) {
    Demands demands;
    for (const auto& [id, seeds] : engine.sequences()) {
      const auto tokens = static_cast<std::int32_t>(random_() % 20);
      demands.push_back({id, graph != nullptr ? 1 : tokens});
    }
    if (graph == nullptr) return engine.step(demands);
    return engine.replay(kShape, demands, [&]() -> Status {
      const auto stream = device_->native_stream(engine.cache().stream());
      return stream ? graph->launch(static_cast<cudaStream_t>(*stream)) : stream.status();
    });
  }
  void play(test::ShadowEngine& engine, const test::Graph& graph) {
    for (int n = 0; n < 300; ++n) {
      if (engine.sequences().size() < 6) {
        ASSERT_NE(engine.create_sequence(), kNoSequence);
      }
      const auto chosen =
          std::next(engine.sequences().begin(),
                    static_cast<std::ptrdiff_t>(random_() % engine.sequences().size()));
      if (std::ssize(chosen->second) > 150) {
        ASSERT_OK(engine.destroy(chosen->first));
      }
      ASSERT_OK(grow(engine, n % 3 == 0 ? nullptr : &graph));
      ASSERT_EQ(engine.mismatches().wrong, 0) << "step " << n << engine.mismatches().first;
    }
  }

  std::unique_ptr<CudaDevice> device_;
  cudaStream_t mine_ = nullptr;
  cudaStream_t captured_ = nullptr;
  std::vector<StreamId> streams_;
  std::mt19937_64 random_{11};
};

TEST_F(CudaStepStreams, EveryOutputIsRightCallByCallAndByGraph) {
  test::EngineOptions options = engine_options();
  options.streams = streams_;
  test::ShadowEngine engine(*device_, options);
  ASSERT_OK(engine.created());
  ASSERT_OK(engine.finish());
  const StreamId capturing = device_->adopt_stream(captured_).value();
  test::Graph graph(captured_);
  ASSERT_OK(graph.capture([&] { return engine.record(kShape, {.stream = capturing}); }));
  EXPECT_NE(engine.cache().stream(), capturing);
  play(engine, graph);
  ASSERT_OK(engine.finish());
  EXPECT_EQ(engine.mismatches().wrong, 0) << engine.mismatches().first;
  EXPECT_GT(engine.mismatches().compared, 100000);
}

TEST_F(CudaStepStreams, AStepWaitsForTheLastStepsStream) {
  test::SmallCache t(DeviceKind::cuda);
  auto& device = dynamic_cast<CudaDevice&>(*t.device);
  const StreamId legacy = device.adopt_stream(nullptr).value();
  const StreamId other = device.create_stream().value();
  const SequenceId id = *t.cache.create_sequence();
  const EventId done = device.create_event().value();
  for (const StreamId stream : {legacy, other}) {
    std::atomic<bool> gate = false;
    ASSERT_OK(device.launch_host(wait_until_open, &gate, t.cache.stream()));
    ASSERT_OK(t.cache.begin_step({.stream = stream}));
    ASSERT_OK(t.cache.append(Demands{{id, 1}}));
    ASSERT_OK(t.cache.write_kv({0, t.buffer(), t.buffer(), DType::f32}));
    ASSERT_OK(t.cache.end_step());
    ASSERT_OK(device.record(done, stream));
    EXPECT_FALSE(device.is_complete(done).value());
    gate = true;
    ASSERT_OK(t.cache.synchronize());
    EXPECT_TRUE(device.is_complete(done).value());
  }
  EXPECT_OK(device.destroy_event(done));
}

TEST_F(CudaStepStreams, CapturedStreamsAreRefusedAndNothingChanges) {
  test::SmallCache t(DeviceKind::cuda);
  auto& device = dynamic_cast<CudaDevice&>(*t.device);
  const StreamId capturing = device.adopt_stream(captured_).value();
  ASSERT_OK(t.cache.synchronize());
  const auto before = t.state();
  test::Graph graph(captured_);
  ASSERT_OK(graph.capture([&]() -> Status {
    EXPECT_FAILS(t.cache.begin_step({.stream = capturing}), failed_precondition, stream);
    EXPECT_FAILS(t.cache.begin_recording({.num_rows = 1}), failed_precondition, stream);
    const Result<StepBatch> batch = t.cache.begin_recording({.num_rows = 1}, {.stream = capturing});
    if (!batch) return batch.status();
    EXPECT_EQ(t.cache.stream(), capturing);
    return t.cache.end_recording();
  }));
  EXPECT_FAILS(t.cache.begin_recording({.num_rows = 1}, {.stream = capturing}), failed_precondition,
               stream);
  EXPECT_FAILS(t.cache.begin_recording({.num_rows = 1}, {.stream = StreamId{12345}}), not_found,
               stream);
  EXPECT_NE(t.cache.stream(), capturing);
  EXPECT_EQ(t.state(), before);
  ASSERT_OK(t.cache.begin_step({.stream = capturing}));
  ASSERT_OK(t.cache.end_step());
  const StreamId other = device.create_stream().value();
  test::Graph second(captured_);  // of the last step's stream: nobody can wait for that
  ASSERT_OK(second.capture([&]() -> Status {
    EXPECT_FAILS(t.cache.begin_step({.stream = other}), failed_precondition, stream);
    return {};
  }));
  EXPECT_OK(t.cache.begin_step({.stream = other}));
  EXPECT_OK(t.cache.end_step());
  EXPECT_OK(t.cache.synchronize());
}

TEST_F(CudaStepStreams, TwoCachesWorkOnOneAdoptedStream) {
  KvCacheOptions options = test::small_options();
  options.home_stream = mine_;
  auto first = KvCache::create(*device_, options);
  ASSERT_OK(first);
  const auto second = KvCache::create(*device_, options);
  ASSERT_OK(second);
  EXPECT_EQ(first->stream(), second->stream());
  EXPECT_EQ(first->stream(), streams_[2]) << "which the engine adopted";
  first = KvCache::create(*device_, options);  // gives one adoption back
  ASSERT_OK(first);
  EXPECT_EQ(device_->native_stream(second->stream()).value(), mine_);
}

}  // namespace
}  // namespace kvarena
