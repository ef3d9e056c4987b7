// Recurrent layers in a cache on a GPU: toy kernels give the bits of runs without a cache, after
// forks, cuts, checkpoints, aborted steps and preemption, call by call and from graphs that are
// replayed; what a lost step leaves.

#include "support/environment.hpp"
#include "support/gpu.hpp"
#include "unit/cache/cuda_graph.hpp"
#include "unit/cache/cuda_states_engine.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

namespace kvarena {
namespace {

using test::CudaStatesCase;
using test::CudaStatesEngine;
using test::Graph;
using test::Recurrence;

constexpr auto kDelta = Recurrence::gated_delta;
constexpr auto kMamba = Recurrence::mamba2;
constexpr auto kInPlace = StateMode::in_place;
constexpr auto kReadWrite = StateMode::read_write;

std::vector<CudaStatesCase> all_cases() {
  std::vector<CudaStatesCase> all{
      {"DeltaInPlace", kDelta, kInPlace},
      {"DeltaReadWrite", kDelta, kReadWrite},
      {"DeltaOneState", kDelta, kInPlace, false},
      {"DeltaTakenBack", kDelta, kReadWrite, true, 3},
      {"DeltaTakenBackInPlace", kDelta, kInPlace, false, 2, 8},
      {"MambaInPlace", kMamba, kInPlace},
      {"MambaReadWrite", kMamba, kReadWrite, true, 0, 8},
      {"MambaOneState", kMamba, kReadWrite, false, 0, 0},
      {"MambaTakenBack", kMamba, kReadWrite, false, 4},
      {"FewPages", kMamba, kReadWrite, true, 1, 8, 26},
      {"StatesFirst", kDelta, kInPlace, true, 1, 8},
  };
  all.back().states_first = true;
  for (const std::size_t of : {0U, 4U, 6U, 9U}) {
    all.push_back(all[of]);
    all.back().name = "Cached" + all.back().name;
    all.back().prefix_cache = true;
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].steps_in_flight = 1 + static_cast<std::int32_t>(i) % 3;
    all[i].max_decode_tokens = 1 + 2 * (static_cast<std::int32_t>(i) % 2);
  }
  return all;
}

/// A stream that a graph can be captured from.
class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaStates : public ::testing::TestWithParam<CudaStatesCase> {};

TEST_P(CudaStates, GiveTheBitsOfARunWithoutACache) {
  KVARENA_NEEDS_GPU();
  const std::uint64_t seed = test::number_from_environment("KVARENA_SEED", 7);
  const CudaStatesCase& its = GetParam();
  std::vector<const char*> expected{"forked", "preempted", "aborted", "checkpoint"};
  if (its.num_pages > 50) expected.push_back("back at a checkpoint");
  if (its.rollback > 0) expected.push_back("taken back");
  if (!its.keeps && its.rollback == 0) expected.push_back("lost");
  if (its.prefix_cache) expected.push_back("begun with a state");
  const Stream stream;
  CudaStatesEngine engine(its, seed, stream.get());
  ASSERT_TRUE(engine.is_created());
  engine.play(400);
  for (int more = 0; more < 15 && !engine.missing(expected).empty() && !HasFailure(); ++more) {
    engine.play(100);
  }
  std::cout << its.name << " seed " << seed << ": " << engine.num_tokens() << " tokens, "
            << engine.num_slots() << " rows of slots\n";
  EXPECT_EQ(engine.missing(expected), "");
  EXPECT_GT(engine.num_slots(), 50);
  if (!HasFailure()) engine.end();
}

TEST_P(CudaStates, OneGraphServesEveryStep) {
  KVARENA_NEEDS_GPU();
  const std::uint64_t seed = test::number_from_environment("KVARENA_SEED", 8);
  const CudaStatesCase& its = GetParam();
  const Stream stream;
  CudaStatesEngine engine(its, seed, stream.get());
  ASSERT_TRUE(engine.is_created());
  engine.play(10);
  const RecordedStep shape{.num_rows = 5, .tokens_per_row = its.max_decode_tokens};
  Graph graph(stream.get());
  ASSERT_OK(graph.capture([&] { return engine.record(shape); }));
  if (HasFailure()) return;
  const std::vector<const char*> expected{"forked", "aborted replay", "checkpoint", "preempted"};
  engine.play(300, shape, [&] { return graph.launch(); });
  for (int more = 0; more < 15 && !engine.missing(expected).empty() && !HasFailure(); ++more) {
    engine.play(100, shape, [&] { return graph.launch(); });
  }
  std::cout << its.name << " seed " << seed << ": " << engine.num_replays() << " replays, "
            << engine.num_tokens() << " tokens\n";
  EXPECT_EQ(engine.missing(expected), "");
  EXPECT_GT(engine.num_replays(), 100);
  if (!HasFailure()) engine.end();
}

TEST_P(CudaStates, WhatALostStepWasToWriteIsNeverRead) {
  KVARENA_NEEDS_GPU();
  const CudaStatesCase& its = GetParam();
  const Stream stream;
  CudaStatesEngine engine(its, 9, stream.get());
  ASSERT_TRUE(engine.is_created());
  const RecordedStep shape{.num_rows = 5, .tokens_per_row = 1};
  Graph graph(stream.get());
  ASSERT_OK(graph.capture([&] { return engine.record(shape); }));
  for (int i = 0; i < 8 && !HasFailure(); ++i) {
    engine.play(20, shape, [&] { return graph.launch(); });
    if (!HasFailure()) engine.lose(shape);
  }
  if (!HasFailure()) engine.play(20, shape, [&] { return graph.launch(); });
  EXPECT_EQ(engine.missing({"lost step"}), "");
  if (!HasFailure()) engine.end();
}

INSTANTIATE_TEST_SUITE_P(, CudaStates, ::testing::ValuesIn(all_cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace kvarena
