// cache_footprint: what it says of a CUDA device on any machine, and that a cache on a host device
// holds exactly what was said, for pools far larger than this machine's memory.

#include "kvarena/cache/cache_footprint.hpp"

#include "device/forwarding_device.hpp"
#include "support/reserved_memory.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/footprint.hpp"
#include "unit/cache/small_cache.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::uint64_t kCapacityBytes = std::uint64_t{1} << 40;
constexpr CacheTarget kH200{.kind = DeviceKind::cuda, .num_sms = 132};

KvCacheOptions options_of(const char* model) { return test::options_for(*find_model_shape(model)); }

// ---- a CUDA device ------------------------------------------------------------------------------

struct Known {
  const char* name;
  KvCacheOptions options;
  std::int32_t num_sms;
  CacheFootprint expected;
};

/// Worked out by hand from decode_workspace.h, columns_workspace.h, prefix_plan.h and
/// device_tables_memory.cpp. Llama-3.1-8B:
/// decode: 256 rows + 132 * 2 * 8 / 8 + 1 = 521 parts of 32 bytes from 256 on, to 17,152; 521 * 8
///   slots of 8, to 50,688; of 128, to 584,192; of 8 * 128 * 4, to 17,656,320.
/// columns: 1,056 slots of 4, to 4,352, and 256; 1,056 + 256 * 8 items of 32, to 103,936; 1,056 *
///   64 + 2 * 1,024 * 32 partial results of 8, to 1,168,896, and of 512, to 69,326,336; 256 * 8 +
///   256 * 8 + 1,056 + 528 segments of 64, to 69,689,856. Prefixes: 19,712, and 1,024 of shared
///   tokens.
/// prompts: 256 of counters and a plan of 32 + 256 * 32 in lines of 256 (8,448).
/// tables: 256 rows of 512 entries (524,288), then 1,024 + 65,536 + 2,048 and 2,048 + 1,024 + 1,024
///   + 2,304 + 256.
/// Phi-3-mini-4k in fp8, with two operands of 8 columns for rows of up to 16 tokens:
/// decode: 64 rows + 132 * 2 * 8 / 32 + 1 = 131 parts, and 32 slots more: 4,224 slots of 8 and
///   67,584 columns of 16 and of 96 * 4, to 27,072,000.
/// columns: 1,056 * 64 + 2 * 64 * 4 * 32 partial results; 33,382,912 in all.
/// Qwen2.5-0.5B: tables share a pool of 2 * (2 * 4 * 65,536 + 32 * 1,024) entries (4,456,448).
/// staging: 2 slots of 64 + 256 * 24 + 40,000 * 4, in lines of 128, after 256; and a stream's 256
///   KiB.
std::vector<Known> known_footprints() {
  std::vector<Known> all{
      {"Llama-3.1-8B, 256 sequences of 8192 tokens",
       options_of("Llama-3.1-8B"),
       132,
       {10'000, 20'971'520'000, 87'608'832, 599'552, 594'944, 3, 2}},
      {"Qwen2.5-0.5B, windowed, 4 tokens a row",
       options_of("Qwen2.5-0.5B"),
       132,
       {65'536, 25'769'803'776, 107'337'216, 4'559'360, 3'482'368, 4, 2}},
      {"Phi-3-mini-4k in fp8, 8 tokens a row",
       options_of("Phi-3-mini-4k-instruct"),
       132,
       {4'096, 12'884'901'888, 60'699'392, 150'272, 396'800, 3, 2}},
      {"f32 in rows, which decode attention does not read",
       options_of("Qwen2.5-0.5B"),
       132,
       {1'000, 262'144'000, 0, 9'984, 295'424, 2, 2}},
      {"Gemma-2-9B, windowed, on 108 multiprocessors",
       options_of("Gemma-2-9B"),
       108,
       {3'000, 16'515'072'000, 162'629'632, 166'400, 311'808, 4, 2}},
  };
  KvCacheOptions& llama = all[0].options;
  llama.max_sequences = 256;
  llama.max_sequence_tokens = 8192;
  llama.max_step_tokens = 8192;
  KvCacheOptions& qwen = all[1].options;
  qwen.layout.block_size_tokens = 32;
  qwen.max_sequences = 1024;
  qwen.max_step_tokens = 8192;
  qwen.max_decode_tokens = 4;
  qwen.window_tokens = 4096;
  qwen.steps_in_flight = 3;
  KvCacheOptions& phi = all[2].options;
  phi.layout.dtype = DType::fp8_e4m3;
  phi.max_sequences = 128;
  phi.max_batch_rows = 64;
  phi.max_sequence_tokens = 4096;
  phi.max_decode_tokens = 8;
  KvCacheOptions& f32 = all[3].options;
  f32.layout.dtype = DType::f32;
  f32.layout.num_layers = 4;
  f32.layout.num_kv_heads = f32.num_q_heads = 8;
  f32.max_sequences = 16;
  f32.max_sequence_tokens = 1000;
  f32.max_step_tokens = 512;
  KvCacheOptions& gemma = all[4].options;
  gemma.max_batch_rows = 48;
  gemma.max_sequence_tokens = 8192;
  gemma.max_step_tokens = 4096;
  gemma.max_decode_tokens = 2;
  gemma.window_tokens = 4096;
  gemma.steps_in_flight = 1;
  for (Known& known : all) known.options.size.num_blocks = known.expected.num_blocks;
  return all;
}

TEST(CacheFootprint, OfACudaDeviceIsKnownWithoutOne) {
  for (const Known& known : known_footprints()) {
    const CacheTarget target{.kind = DeviceKind::cuda, .num_sms = known.num_sms};
    const Result<CacheFootprint> footprint = cache_footprint(known.options, target);
    ASSERT_OK(footprint) << known.name;
    CacheFootprint of_device = *footprint;
    of_device.host_bytes = 0;
    EXPECT_EQ(of_device, known.expected) << known.name;
    EXPECT_EQ(
        footprint->device_bytes(),
        known.expected.pool_bytes + known.expected.workspace_bytes + known.expected.table_bytes);
  }
}

/// Block tables are as large as what a step can use, not as every sequence at its longest: a few
/// times 4 bytes for each entry that a step's tables may have.
TEST(CacheFootprint, BlockTablesAreAsLargeAsWhatCanBeInUse) {
  for (const std::int64_t longest : {0, 131'072, 32'768}) {
    for (const std::int32_t sequences : {256, 1024, 4096}) {
      KvCacheOptions options = options_of("Llama-3.1-8B");
      options.size.num_blocks = 56'000;
      options.max_sequences = sequences;
      options.max_sequence_tokens = longest;
      const CacheFootprint usual = cache_footprint(options, kH200).value();
      const std::int64_t batch_blocks = 4 * options.size.num_blocks;  // max_batch_blocks of 0
      EXPECT_LE(usual.table_bytes, 6 * 4 * batch_blocks) << sequences << " of " << longest;
      EXPECT_LE(usual.table_bytes, 5 << 20) << sequences << " of " << longest;
      options.max_batch_blocks = 56'000;
      const CacheFootprint small = cache_footprint(options, kH200).value();
      EXPECT_LT(small.table_bytes, usual.table_bytes);
    }
  }
}

TEST(CacheFootprint, AStreamsBounceBufferIsStaging) {
  const KvCacheOptions options = known_footprints()[0].options;
  CacheTarget target = kH200;
  const CacheFootprint usual = cache_footprint(options, target).value();
  target.bounce_bytes += 12'345;
  const CacheFootprint larger = cache_footprint(options, target).value();
  EXPECT_EQ(larger.staging_bytes, usual.staging_bytes + 12'345);
  EXPECT_EQ(larger.device_bytes(), usual.device_bytes());
}

TEST(CacheFootprint, FreeMemoryMattersOnlyToWhoAsksForAllOfIt) {
  KvCacheOptions options = options_of("Llama-3.1-8B");
  const std::int64_t block_bytes = KvLayout::create(options.layout)->block_bytes();
  options.size = {.all_free_but_bytes = kGiB};
  for (const std::int64_t free_bytes : {2 * kGiB, 141 * kGiB}) {
    EXPECT_EQ(cache_footprint(options, kH200, free_bytes)->num_blocks,
              (free_bytes - kGiB) / block_bytes);
  }
  EXPECT_FAILS(cache_footprint(options, kH200, kGiB), insufficient_vram, device_memory);
  options.size = {.budget_bytes = kGiB};
  EXPECT_EQ(*cache_footprint(options, kH200, 0), *cache_footprint(options, kH200, 141 * kGiB));
}

// ---- refusals -----------------------------------------------------------------------------------

struct Refusal {
  StatusCode code;
  test::Blame blame;
  std::function<void(KvCacheOptions&, CacheTarget&)> spoil;
};

TEST(CacheFootprint, RefusesOnCudaWhatCreateRefusesThere) {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kUnsupported = StatusCode::unsupported;
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const Refusal refusals[] = {
      {kInvalid, Option::kind, [](auto&, auto& t) { t.kind = static_cast<DeviceKind>(99); }},
      {kInvalid, Option::num_threads, [](auto&, auto& t) { t.num_threads = -1; }},
      {kInvalid, Option::num_sms, [](auto&, auto& t) { t.num_sms = 0; }},
      {kInvalid, Option::num_sms, [](auto&, auto& t) { t.num_sms = 4097; }},
      {kInvalid, Option::bounce_bytes, [](auto&, auto& t) { t.bounce_bytes = -1; }},
      {kInvalid, Option::size, [](auto& o, auto&) { o.size = {}; }},
      {kInvalid, Option::num_blocks, [](auto& o, auto&) { o.size = {.num_blocks = -1}; }},
      {kInvalid, Option::num_blocks, [](auto& o, auto&) { o.size = {.num_blocks = kHuge}; }},
      {kInvalid, Resource::num_blocks, [](auto& o, auto&) { o.size = {.budget_bytes = kHuge}; }},
      {kInvalid, Resource::pool_bytes, [](auto& o, auto&) { o.size = {.num_blocks = 1 << 28}; }},
      {kInvalid, Option::max_batch_blocks, [](auto& o, auto&) { o.max_batch_blocks = 1LL << 31; }},
      {kInvalid, Option::max_batch_blocks, [](auto& o, auto&) { o.max_batch_blocks = -1; }},
      {kInvalid, Option::watermark_blocks, [](auto& o, auto&) { o.watermark_blocks = 101; }},
      {kInvalid, Option::max_step_tokens,
       [](auto& o, auto&) { o.max_step_tokens = 1LL << 30 | 1; }},
      {kInvalid, Option::num_q_heads, [](auto& o, auto&) { o.num_q_heads = 9; }},
      {kUnsupported, Option::dtype, [](auto& o, auto&) { o.layout.dtype = DType::int8; }},
      {kUnsupported, Option::head_dim_k, [](auto& o, auto&) { o.layout.head_dim_k = 2048; }},
      {kUnsupported, Option::tile_order,
       [](auto& o, auto&) {
         o.layout.tile_order = TileOrder::chunked;
         o.layout.block_size_tokens = 8;
       }},
  };
  for (std::size_t i = 0; i < std::size(refusals); ++i) {
    KvCacheOptions options = options_of("Llama-3.1-8B");
    options.size = {.num_blocks = 100};
    CacheTarget target = kH200;
    ASSERT_OK(cache_footprint(options, target));
    refusals[i].spoil(options, target);
    const Status status = cache_footprint(options, target).status();
    EXPECT_TRUE(test::fails_with(status, refusals[i].code, refusals[i].blame)) << "refusal " << i;
  }
}

TEST(CacheFootprint, TheSmallestAndLargestNumbersEndInOneClearAnswer) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t blocks : {std::int64_t{1}, KvLayout::kMaxBlocks, kMost}) {
    for (const std::int64_t entries : {std::int64_t{0}, std::int64_t{1} << 30, kMost}) {
      for (const CacheTarget& target : {kH200, CacheTarget{.num_threads = 256}}) {
        KvCacheOptions options = options_of("Llama-3.1-405B");
        options.layout.block_size_tokens = 65'536;
        options.size.num_blocks = blocks;
        options.max_sequences = 1 << 24;
        options.max_batch_rows = 1 << 20;
        options.max_batch_blocks = entries;
        options.steps_in_flight = 16;
        options.window_tokens = std::numeric_limits<std::int32_t>::max();
        const Result<CacheFootprint> footprint = cache_footprint(options, target);
        const bool is_sane = blocks == 1 && entries < kMost;
        EXPECT_EQ(footprint.is_ok(), is_sane) << blocks << " blocks, " << entries << " entries";
        if (!footprint) {
          EXPECT_EQ(footprint.status().code, StatusCode::invalid_argument);
        } else {
          EXPECT_GT(footprint->device_bytes(), footprint->pool_bytes);
        }
      }
    }
  }
}

TEST(CacheFootprint, ADeviceThatSaysCudaAndIsNoneIsUnsupported) {
  struct Pretender final : ForwardingDevice {
    using ForwardingDevice::ForwardingDevice;
    DeviceKind kind() const noexcept override { return DeviceKind::cuda; }
  };
  const auto host = HostDevice::create({.capacity_bytes = 1 << 20}).value();
  Pretender pretender(*host);
  EXPECT_FAILS(target_of(pretender), unsupported, device);
  EXPECT_FAILS(KvCache::create(pretender, test::small_options()), unsupported, device);
  EXPECT_EQ(target_of(*host)->kind, DeviceKind::host);
}

// ---- predicted == allocated on the host ---------------------------------------------------------

struct HostCase {
  std::string name;
  KvCacheOptions options;
};

/// Models, and around each the options that decide sizes.
std::vector<HostCase> host_cases() {
  std::vector<HostCase> cases;
  std::int32_t turn = 0;
  for (const ModelShape& shape : model_shapes()) {
    for (const std::int32_t window : {0, 4096}) {
      KvCacheOptions options = test::options_for(shape);
      ++turn;
      options.window_tokens = window;
      options.order = turn % 2 == 0 ? BlockOrder::block_major : BlockOrder::layer_major;
      options.layout.dtype = turn % 5 == 0 ? DType::f32 : shape.dtype;
      options.layout.block_size_tokens = 8 << turn % 4;
      options.layout.head_dim_v = turn % 7 == 0 ? 40 : 0;
      options.steps_in_flight = 1 + turn % 16;
      options.num_threads = 1 + turn % 3;
      options.max_batch_rows = turn % 2 == 0 ? 0 : 7;
      options.max_sequence_tokens = turn % 3 == 0 ? 10'000 : 0;
      options.max_batch_blocks = turn % 3 == 0 ? 0 : 1000;  // the host's arrays are real
      switch (turn % 3) {
        case 0: options.size = {.num_blocks = 5000 + turn}; break;
        case 1: options.size = {.budget_bytes = 300 * kGiB + turn}; break;
        default: options.size = {.all_free_but_bytes = 900 * kGiB}; break;
      }
      cases.push_back(
          {std::string(shape.name) + " with window " + std::to_string(window), options});
    }
  }
  return cases;
}

TEST(CacheFootprint, IsWhatAHostCacheAllocates) {
  for (const HostCase& c : host_cases()) {
    SCOPED_TRACE(c.name);
    test::ReservedMemory memory;
    const auto device =
        HostDevice::create(
            {.capacity_bytes = kCapacityBytes, .streams = HostStreams::manual, .memory = &memory})
            .value();
    const CacheTarget target = target_of(*device).value();
    const auto free_bytes = static_cast<std::int64_t>(device->memory_info()->free_bytes);
    const Result<CacheFootprint> predicted = cache_footprint(c.options, target, free_bytes);
    ASSERT_OK(predicted);
    {
      const Result<KvCache> cache = KvCache::create(*device, c.options);
      ASSERT_OK(cache);
      test::expect_as_predicted(*device, *cache, *predicted);
      EXPECT_EQ(memory.reserved_bytes, predicted->device_bytes());
      EXPECT_EQ(static_cast<std::int64_t>(device->memory_info()->free_bytes),
                free_bytes - predicted->device_bytes());
    }
    EXPECT_EQ(memory.reserved_bytes, 0);
  }
}

TEST(CacheFootprint, ThreadsOfTheTargetAreThoseOfTheDevice) {
  const auto device = HostDevice::create({.streams = HostStreams::manual}).value();
  KvCacheOptions options = test::small_options();
  options.num_threads = 0;
  const Result<KvCache> cache = KvCache::create(*device, options);
  ASSERT_OK(cache);
  test::expect_as_predicted(*device, *cache, cache_footprint(options, *target_of(*device)).value());
  const CacheFootprint one = cache_footprint(options, {.num_threads = 1}).value();
  const CacheFootprint many = cache_footprint(options, {.num_threads = 200}).value();
  EXPECT_LT(one.workspace_bytes, many.workspace_bytes) << "planned for another machine";
  options.num_threads = 200;
  EXPECT_EQ(cache_footprint(options, {.num_threads = 1}).value(), many) << "the option decides";
}

}  // namespace
}  // namespace kvarena
