// Caches with groups on a GPU: whole lives of sequences with attention of every layer against
// double precision, recycled memory poisoned, steps in flight, the same calls to a cache on the
// host; steps recorded in a graph.

#include "support/gpu.hpp"
#include "unit/cache/cuda_graph.hpp"
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

using test::EngineGroup;
using test::Graph;
using test::GroupEngine;
using test::GroupEngineOptions;

constexpr double kF32 = 2e-4;
constexpr double kF16 = 6e-3;
constexpr double kBf16 = 4e-2;

struct GpuCase {
  std::string name;
  GroupEngineOptions options;
  int steps = 120;
};

void PrintTo(const GpuCase& its, std::ostream* out) { *out << its.name; }

struct Kv {
  DType dtype = DType::bf16;
  std::int32_t heads = 2;
  std::int32_t dim = 64;
  std::int32_t block_size = 16;
};

EngineGroup group(PagedKind kind, std::vector<GroupLayer> layers, const Kv& kv,
                  std::int64_t limit = 0) {
  return {.group = {.kind = kind,
                    .layers = {},
                    .num_kv_heads = kv.heads,
                    .head_dim_k = kv.dim,
                    .dtype = kv.dtype,
                    .block_size_tokens = kv.block_size,
                    .limit_tokens = limit},
          .layers = std::move(layers)};
}

GpuCase gpu_case(std::string name, std::vector<EngineGroup> groups, DType io, std::int64_t pages) {
  GpuCase made{.name = std::move(name), .options = {}};
  made.options.groups = std::move(groups);
  made.options.device = DeviceKind::cuda;
  made.options.num_pages = pages;
  made.options.io = io;
  made.options.tolerance = io == DType::f32 ? kF32 : io == DType::f16 ? kF16 : kBf16;
  made.options.one_head = true;
  made.options.lag = 3;
  made.options.mirrors_host = true;
  return made;
}

constexpr auto kFull = PagedKind::full;
constexpr auto kWindow = PagedKind::window;
constexpr auto kChunk = PagedKind::chunk;
constexpr auto kCross = PagedKind::cross;

std::vector<GpuCase> plain_cases() {
  constexpr DType bf16 = DType::bf16;
  constexpr DType f16 = DType::f16;
  constexpr DType f32 = DType::f32;
  const Kv small{.dtype = f32, .heads = 2, .dim = 8, .block_size = 4};
  std::vector<GpuCase> all;
  all.push_back(gpu_case("FullAndWindowPlain",
                         {group(kFull, {{0}, {3}}, small),
                          group(kWindow, {{1}, {2}, {4, 2}, {5}},
                                {.dtype = f32, .heads = 1, .dim = 16, .block_size = 4}, 9)},
                         f32, 80));
  all.push_back(gpu_case(
      "FullAndWindowBf16",
      {group(kFull, {{0}, {3}}, {}), group(kWindow, {{1}, {2}, {4, 2}, {5}}, {}, 40)}, bf16, 60));
  all.push_back(
      gpu_case("FullAndWindowF16Wide",
               {group(kFull, {{2}}, {.dtype = f16, .heads = 1, .dim = 128}),
                group(kWindow, {{0}, {1}, {3, 1}}, {.dtype = f16, .heads = 1, .dim = 128}, 17)},
               f16, 60));
  all.push_back(gpu_case(
      "FewPages", {group(kFull, {{0}}, {}), group(kWindow, {{1}, {2}, {3}}, {}, 16)}, bf16, 16));
  all.push_back(gpu_case("LargeBlocks",
                         {group(kFull, {{0}}, {.dtype = f16, .dim = 96, .block_size = 32}),
                          group(kWindow, {{1}, {2}, {3}, {4}}, {.dtype = f16, .dim = 64}, 33)},
                         f16, 60));
  all.push_back(
      gpu_case("Fp8",
               {group(kFull, {{0}}, {.dtype = DType::fp8_e4m3, .dim = 128}),
                group(kWindow, {{1}, {2}}, {.dtype = DType::fp8_e4m3, .heads = 2, .dim = 64}, 25)},
               bf16, 90));
  all.back().options.mirrors_host = false;  // the CPU has no fp8 layers
  all.push_back(gpu_case("WindowAlone", {group(kWindow, {{0}, {1}}, {}, 50)}, bf16, 60));
  all.push_back(gpu_case("WindowOfOneToken",
                         {group(kWindow, {{0}}, {}, 1), group(kFull, {{1}}, {.dim = 128})}, bf16,
                         120));
  all.push_back(gpu_case("BatchInvariant",
                         {group(kFull, {{0}}, {}), group(kWindow, {{1}, {2}}, {}, 21)}, bf16, 60));
  all.back().options.batch_invariant_tokens = 6 * GroupEngine::kLongest;
  all.push_back(gpu_case(
      "Mixed",
      {group(kFull, {{0}}, {.dtype = f16}), group(kWindow, {{1}, {2}}, {.dtype = f16}, 30)}, f16,
      90));
  for (EngineGroup& its : all.back().options.groups) its.group.head_dim_v = 32;
  all.push_back(gpu_case("Latent", {group(kFull, {{0}, {1}}, {.heads = 1, .dim = 96})}, bf16, 60));
  all.back().options.groups[0].group.value_in_key = true;
  all.back().options.groups[0].group.head_dim_v = 64;
  all.push_back(
      gpu_case("LatentOfMlaBf16", {group(kFull, {{0}, {1}}, {.heads = 1, .dim = 576})}, bf16, 60));
  all.back().options.groups[0].group.value_in_key = true;
  all.back().options.groups[0].group.head_dim_v = 512;
  // The CPU has none of these.
  const auto add_latents = [&all](const char* name, DType dtype, DType io) {
    all.push_back(gpu_case(
        name, {group(kFull, {{0}, {1}}, {.dtype = dtype, .heads = 1, .dim = 576})}, io, 60));
    all.back().options.groups[0].group.value_in_key = true;
    all.back().options.groups[0].group.head_dim_v = 512;
    all.back().options.mirrors_host = false;
  };
  add_latents("LatentFp8", DType::latent_fp8, bf16);
  add_latents("LatentFp8OfF16", DType::latent_fp8, f16);
  add_latents("LatentOfMlaFp8", DType::fp8_e4m3, bf16);
  add_latents("LatentFp8Indexed", DType::latent_fp8, bf16);
  all.back().options.groups[0].group.index_dim = 128;
  const auto add_scaled = [&all](const char* name, DType io, std::int32_t dim) {
    all.push_back(gpu_case(
        name,
        {group(kFull, {{0}}, {.dtype = DType::fp8_e4m3, .dim = dim}),
         group(kWindow, {{1}, {2}}, {.dtype = DType::fp8_e4m3, .heads = 4, .dim = 64}, 25)},
        io, 90));
    for (EngineGroup& its : all.back().options.groups) {
      its.group.scale = ScaleKind::per_token_head;
    }
    all.back().options.mirrors_host = false;
  };
  add_scaled("ScalesOfTokens", bf16, 128);
  add_scaled("ScalesOfTokensF32", f32, 100);
  all.back().options.groups[0].group.head_dim_v = 36;
  for (GpuCase& its : all) its.options.steps_in_flight = 1 + static_cast<int>(its.name.size()) % 3;
  return all;
}

/// Groups whose layers see other tokens than all or the last ones.
std::vector<GpuCase> split_cases() {
  constexpr DType bf16 = DType::bf16;
  constexpr DType f16 = DType::f16;
  constexpr DType f32 = DType::f32;
  const Kv small{.dtype = f32, .heads = 2, .dim = 8, .block_size = 4};
  std::vector<GpuCase> all;
  all.push_back(gpu_case(
      "ChunksPlain", {group(kFull, {{1}}, small), group(kChunk, {{0}, {2}}, small, 8)}, f32, 120));
  all.push_back(gpu_case("ChunksBf16",
                         {group(kFull, {{1}}, {}), group(kChunk, {{0}, {2}, {3, 2}}, {}, 48)}, bf16,
                         90));
  all.push_back(
      gpu_case("ChunksF16Wide",
               {group(kFull, {{3}}, {.dtype = f16, .heads = 1, .dim = 128}),
                group(kChunk, {{0}, {1}, {2}}, {.dtype = f16, .heads = 1, .dim = 128}, 16)},
               f16, 90));
  all.push_back(gpu_case(
      "EncoderPlain",
      {group(kFull, {{0}, {2}}, small),
       group(kCross, {{1}, {3}}, {.dtype = f32, .heads = 4, .dim = 8, .block_size = 8}, 21)},
      f32, 90));
  all.push_back(gpu_case(
      "EncoderBf16", {group(kFull, {{0}, {2}}, {}), group(kCross, {{1}, {3}}, {}, 70)}, bf16, 70));
  all.push_back(gpu_case(
      "ManyKindsPlain",
      {group(kFull, {{0}}, {.dtype = f32, .heads = 2, .dim = 8, .block_size = 8}),
       group(kWindow, {{1}, {2}}, {.dtype = f32, .heads = 1, .dim = 8, .block_size = 2}, 7),
       group(kChunk, {{3}}, {.dtype = f32, .heads = 4, .dim = 8, .block_size = 4}, 12),
       group(kWindow, {{4}}, small, 40)},
      f32, 200));
  all.push_back(gpu_case("ManyKindsF16",
                         {group(kFull, {{0}}, {.dtype = f16}),
                          group(kWindow, {{1}, {2}}, {.dtype = f16, .heads = 1}, 19),
                          group(kChunk, {{3}}, {.dtype = f16, .heads = 4, .dim = 128}, 64),
                          group(kCross, {{5}}, {.dtype = f16, .heads = 2, .dim = 128}, 40),
                          group(kWindow, {{4}}, {.dtype = f16, .block_size = 32}, 90)},
                         f16, 120));
  return all;
}

std::vector<GpuCase> all_cases() {
  std::vector<GpuCase> all = plain_cases();
  for (GpuCase& its : split_cases()) all.push_back(std::move(its));
  for (const char* name : {"FullAndWindowPlain", "FullAndWindowBf16", "Fp8", "LatentOfMlaBf16",
                           "LatentFp8", "ChunksPlain"}) {
    all.push_back(*std::ranges::find(all, name, &GpuCase::name));
    all.back().name = "Cached" + all.back().name;
    all.back().options.prefix_cache = true;
  }
  return all;
}

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
  for (std::uint64_t seed = 1; seed <= 2 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    GroupEngine engine(GetParam().options, seed);
    ASSERT_TRUE(engine.is_created());
    engine.play(GetParam().steps);
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
  EXPECT_GT(forks, 0);
  EXPECT_GT(cuts, 0);
  EXPECT_GT(aborts, 0);
  EXPECT_GT(compared, 10'000);
  EXPECT_GT(tables, 50);
  EXPECT_EQ(hits > 0, GetParam().options.prefix_cache);
}

INSTANTIATE_TEST_SUITE_P(, CudaGroups, ::testing::ValuesIn(all_cases()),
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
  for (const GpuCase& its : all_cases()) {
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
      engine.play(its.steps, GetParam().shape, [&] { return graph.launch(); });
    }
    report(its, engine, 7);
    EXPECT_GT(engine.num_replays(), 20);
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
  for (const GpuCase& its : all_cases()) {
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
