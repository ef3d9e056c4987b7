// Caches with groups on a GPU: whole lives of sequences with attention of every layer against
// double precision, recycled memory poisoned, steps in flight, the same calls to a cache on the
// host; steps recorded in a graph.

#include "support/gpu.hpp"
#include "unit/cache/cuda_graph.hpp"
#include "unit/cache/cuda_group_cases.hpp"
#include "unit/cache/footprint.hpp"
#include "unit/cache/group_engine.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <ostream>
#include <string>

namespace kvarena {
namespace {

using test::all_gpu_cases;
using test::EngineGroup;
using test::GpuCase;
using test::Graph;
using test::group;
using test::GroupEngine;
using test::kFull;
using test::kWindow;

/// Milliseconds since the last call, for the log.
int lap() {
  static auto last = std::chrono::steady_clock::now();
  const auto now = std::chrono::steady_clock::now();
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(now - last).count();
  last = now;
  return static_cast<int>(passed);
}

void report(const GpuCase& its, const GroupEngine& engine, std::uint64_t seed) {
  std::cout << its.name << " seed " << seed << ": " << engine.num_compared() << " numbers, "
            << engine.num_tables() << " rows of tables, " << engine.num_forks() << " forks, "
            << engine.num_cuts() << " cuts, " << engine.num_aborts() << " aborts, "
            << engine.num_refused() << " refusals, " << engine.num_replays() << " replays, "
            << lap() << " ms\n"
            << std::flush;
}

class CudaGroups : public ::testing::TestWithParam<GpuCase> {};

TEST_P(CudaGroups, AttendExactlyThroughWholeLives) {
  KVARENA_NEEDS_GPU();
  int forks = 0;
  int cuts = 0;
  int aborts = 0;
  int compared = 0;
  int tables = 0;
  int hits = 0;
  static_cast<void>(lap());
  const bool is_watched = test::is_watched();  // each call takes far longer then
  for (std::uint64_t seed = 1; seed <= (is_watched ? 1 : 2) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    GroupEngine engine(GetParam().options, seed);
    ASSERT_TRUE(engine.is_created());
    engine.play(is_watched ? GetParam().steps / 8 : GetParam().steps);
    report(GetParam(), engine, seed);
    if (HasFailure()) return;
    engine.end();
    forks += engine.num_forks();
    cuts += engine.num_cuts();
    aborts += engine.num_aborts();
    compared += engine.num_compared();
    tables += engine.num_tables();
    hits += engine.num_hits();
  }
  if (is_watched) return;
  EXPECT_GT(forks, 0);
  EXPECT_GT(cuts, 0);
  EXPECT_GT(aborts, 0);
  EXPECT_GT(compared, 10'000);
  EXPECT_GT(tables, 50);
  EXPECT_EQ(hits > 0, GetParam().options.prefix_cache);
}

INSTANTIATE_TEST_SUITE_P(, CudaGroups, ::testing::ValuesIn(all_gpu_cases()),
                         [](const auto& tested) { return tested.param.name; });

// ---- graphs ------------------------------------------------------------------------------------

struct RecordedCase {
  std::string name;
  GpuCase game;
  RecordedStep shape;
};

void PrintTo(const RecordedCase& its, std::ostream* out) { *out << its.name; }

std::vector<RecordedCase> recorded_cases() {
  std::vector<RecordedCase> all;
  for (const GpuCase& its : all_gpu_cases()) {
    for (const std::int32_t tokens : {1, 3}) {
      if (tokens > 1 && its.name.find("Plain") == std::string::npos &&
          its.name.find("Bf16") == std::string::npos &&
          its.name.find("ManyKinds") == std::string::npos) {
        continue;
      }
      RecordedCase made{
          its.name + std::to_string(tokens), its, {.num_rows = 5, .tokens_per_row = tokens}};
      made.game.options.max_decode_tokens = tokens;
      made.game.steps = 90;
      all.push_back(std::move(made));
    }
  }
  return all;
}

class CudaRecordedGroups : public ::testing::TestWithParam<RecordedCase> {};

TEST_P(CudaRecordedGroups, OneGraphServesAllGroups) {
  KVARENA_NEEDS_GPU();
  static_cast<void>(lap());
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    GpuCase its = GetParam().game;
    its.options.stream = stream;
    GroupEngine engine(its.options, 7);
    ASSERT_TRUE(engine.is_created());
    engine.play(6);
    Graph graph(stream);
    ASSERT_OK(graph.capture([&] { return engine.record(GetParam().shape); }));
    if (!HasFailure()) {
      engine.play(test::is_watched() ? 12 : its.steps, GetParam().shape,
                  [&] { return graph.launch(); });
    }
    report(its, engine, 7);
    EXPECT_GT(engine.num_replays(), test::is_watched() ? 2 : 20);
    if (!HasFailure()) engine.end();
  }
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(, CudaRecordedGroups, ::testing::ValuesIn(recorded_cases()),
                         [](const auto& tested) { return tested.param.name; });

// The first part has larger blocks than the group that keeps all tokens.
TEST(CudaGroupsRecording, KernelsOfTheEngineLearnTheLongestSequence) {
  KVARENA_NEEDS_GPU();
  const auto device = test::make_cuda();
  ASSERT_NE(device, nullptr);
  const GroupLayer windowed[] = {{.layer = 0}};
  const GroupLayer full[] = {{.layer = 1}};
  LayerGroup groups[2] = {group(kWindow, {}, {.block_size = 64}, 40).group,
                          group(kFull, {}, {.block_size = 16}).group};
  groups[0].layers = windowed;
  groups[1].layers = full;
  KvCacheOptions options;
  options.groups = groups;
  options.size.num_blocks = 40;
  options.num_q_heads = 2;
  for (const std::int64_t most : {0, 300}) {
    options.max_sequence_tokens = most;
    KvCache cache = KvCache::create(*device, options).value();
    const GroupLayout::Part& part = cache.arena().groups()->parts()[1];
    const std::int64_t in_pool = 40 * part.blocks.blocks_per_page * part.layout.block_size();
    const auto stream = static_cast<cudaStream_t>(*device->native_stream(cache.stream()));
    ASSERT_OK(cache.synchronize());
    Graph graph(stream);
    ASSERT_OK(graph.capture([&]() -> Status {
      if (Status s = cache.begin_recording({.num_rows = 2}).status(); !s) return s;
      EXPECT_EQ(cache.device_batch(1)->max_length_tokens, most == 0 ? in_pool : most);
      return cache.end_recording();
    }));
  }
}

// ---- memory ------------------------------------------------------------------------------------

TEST(CudaGroupsMemory, PredictedIsAllocated) {
  KVARENA_NEEDS_GPU();
  for (const GpuCase& its : all_gpu_cases()) {
    SCOPED_TRACE(its.name);
    const auto device = test::make_cuda();  // its peak counts from here
    ASSERT_NE(device, nullptr);
    std::vector<LayerGroup> groups;
    for (const EngineGroup& one : its.options.groups) {
      groups.push_back(one.group);
      groups.back().layers = one.layers;
    }
    const KvCacheOptions options{.size = {.num_blocks = 40},
                                 .num_q_heads = 4,
                                 .max_sequences = 6,
                                 .max_step_tokens = 64,
                                 .groups = groups};
    const CacheFootprint predicted = cache_footprint(options, target_of(*device).value()).value();
    const KvCache cache = KvCache::create(*device, options).value();
    test::expect_as_predicted(*device, cache, predicted);
  }
}

}  // namespace
}  // namespace kvarena
