// Predicted == allocated on a GPU, and what the driver says beside it. The figures are printed.

#include "support/gpu.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/footprint.hpp"
#include "unit/cache/small_cache.hpp"

#include "kvarena/device/memory_drift.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

void print(const std::string& what, std::int64_t bytes) {
  std::cout << "[ FIGURE   ] " << what << ": " << bytes << " bytes\n";
}

std::int64_t free_bytes(const Device& device) {
  return static_cast<std::int64_t>(device.memory_info().value().free_bytes);
}

struct Variant {
  const char* name;
  std::function<void(KvCacheOptions&)> change;
};

const Variant kVariants[] = {
    {"as it is", [](KvCacheOptions&) {}},
    {"windowed, 4 tokens a row, 3 steps",
     [](KvCacheOptions& o) {
       o.window_tokens = 2047;
       o.max_decode_tokens = 4;
       o.steps_in_flight = 3;
     }},
    {"fp8, 8 tokens a row",
     [](KvCacheOptions& o) {
       o.layout.dtype = DType::fp8_e4m3;
       o.max_decode_tokens = 8;
     }},
    {"f32", [](KvCacheOptions& o) { o.layout.dtype = DType::f32; }},
    {"layer-major, 8192 tokens a sequence, 1000 sequences",
     [](KvCacheOptions& o) {
       o.order = BlockOrder::layer_major;
       o.max_sequence_tokens = 8192;
       o.max_sequences = 1000;
     }},
};

class CudaFootprint : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { KVARENA_NEEDS_GPU(); }
  KvCacheOptions options() const { return test::options_for(*find_model_shape(GetParam())); }
};

TEST_P(CudaFootprint, IsWhatACudaCacheAllocates) {
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    const auto device = test::make_cuda({.bounce_bytes = 300'000});
    ASSERT_NE(device, nullptr);
    EXPECT_EQ(device->tracker().breakdown().allocations_ever, 0U) << "opening allocates nothing";
    KvCacheOptions given = options();
    given.size = {.budget_bytes = 2 * kGiB + 1};
    variant.change(given);
    const CacheTarget target = target_of(*device).value();
    const Result<CacheFootprint> predicted = cache_footprint(given, target);
    ASSERT_OK(predicted);
    const std::int64_t before = free_bytes(*device);
    {
      const Result<KvCache> cache = KvCache::create(*device, given);
      ASSERT_OK(cache);
      test::expect_as_predicted(*device, *cache, *predicted);
      const std::string name = std::string(GetParam()) + ", " + variant.name;
      print(name + ": predicted", predicted->device_bytes());
      print(name + ": driver over predicted",
            before - free_bytes(*device) - predicted->device_bytes());
      EXPECT_EQ(device->tracker().breakdown().staging.peak_bytes,
                static_cast<std::uint64_t>(predicted->staging_bytes + target.bounce_bytes));
    }
    EXPECT_EQ(device->tracker().breakdown().total.bytes, 0U);
    EXPECT_EQ(device->tracker().breakdown().staging.bytes, 0U);
  }
}

TEST_P(CudaFootprint, AnAdoptedStreamTakesWhatItsOwnWould) {
  const auto device = test::make_cuda();
  ASSERT_NE(device, nullptr);
  const StreamId engines = device->create_stream().value();
  const std::uint64_t bounce = device->tracker().breakdown().staging.bytes;
  KvCacheOptions given = options();
  given.size = {.num_blocks = 100};
  given.home_stream = device->native_stream(engines).value();
  const CacheFootprint predicted = cache_footprint(given, *target_of(*device)).value();
  const Result<KvCache> cache = KvCache::create(*device, given);
  ASSERT_OK(cache);
  const MemoryBreakdown used = device->tracker().breakdown();
  EXPECT_EQ(used.staging.bytes, bounce + static_cast<std::uint64_t>(predicted.staging_bytes));
  EXPECT_EQ(used.total.bytes, static_cast<std::uint64_t>(predicted.device_bytes()));
}

TEST_P(CudaFootprint, FittedIntoNearlyAllThatIsFree) {
  const auto device = test::make_cuda();
  ASSERT_NE(device, nullptr);
  const CacheTarget target = target_of(*device).value();
  const std::int64_t before = free_bytes(*device);
  const std::int64_t budget = before - kGiB;
  const Result<KvCacheOptions> fitted = fit_cache(options(), target, budget);
  ASSERT_OK(fitted);
  const CacheFootprint predicted = cache_footprint(*fitted, target).value();
  const Result<KvCache> cache = KvCache::create(*device, *fitted);
  ASSERT_OK(cache) << device->describe(cache.status());
  test::expect_as_predicted(*device, *cache, predicted);
  EXPECT_LE(predicted.device_bytes(), budget);
  const std::int64_t taken = before - free_bytes(*device);
  print(std::string(GetParam()) + " in all free but 1 GiB: predicted", predicted.device_bytes());
  print(std::string(GetParam()) + " in all free but 1 GiB: driver over predicted",
        taken - predicted.device_bytes());
  EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(predicted.device_bytes()),
              0.01 * static_cast<double>(predicted.device_bytes()));
}

INSTANTIATE_TEST_SUITE_P(Models, CudaFootprint,
                         ::testing::Values("Phi-3-mini-4k-instruct", "Llama-3.1-8B",
                                           "Qwen2.5-0.5B"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name;
                         });

/// What the driver has more than is tracked, at each stage of a process's life: the overhead of a
/// plan. None of it is a cache's, and all of it is within a hundredth of the card.
TEST(CudaOverhead, OfContextAndKernelsIsSmallAndPrinted) {
  KVARENA_NEEDS_GPU();
  KvCacheOptions options = test::small_options();
  options.layout.dtype = DType::bf16;
  options.layout.head_dim_k = 128;
  options.layout.block_size_tokens = 16;
  test::SmallCache small(DeviceKind::cuda, options);
  const Device& device = *small.device;
  print("used when the device was opened", static_cast<std::int64_t>(device.overhead_bytes()));
  const auto print_growth = [&](const char* stage) {
    print(std::string("grown by ") + stage, measure_drift(device).value().growth_bytes);
  };
  print_growth("creating a cache, its stream and events");
  const SequenceId id = small.cache.create_sequence().value();
  for (const std::int32_t tokens : {4, 1}) {
    ASSERT_OK(small.cache.begin_step());
    ASSERT_OK(small.cache.append(std::vector<AppendDemand>{{id, tokens}}));
    ASSERT_OK(small.cache.write_kv(
        {.layer = 0, .key = small.buffer(), .value = small.buffer(), .dtype = DType::bf16}));
    ASSERT_OK(small.cache.attend({.layer = 0,
                                  .q = small.buffer(),
                                  .q_dtype = DType::bf16,
                                  .out = small.buffer(),
                                  .out_dtype = DType::bf16}));
    ASSERT_OK(small.cache.end_step());
    ASSERT_OK(small.cache.synchronize());
    print_growth(tokens == 1 ? "a decode step" : "a prefill step");
  }
  const MemoryDrift drift = measure_drift(device).value();
  EXPECT_LE(drift.growth_bytes,
            static_cast<std::int64_t>(device.memory_info().value().total_bytes / 100))
      << to_string(drift);
  EXPECT_GE(drift.growth_bytes, -4 * kMiB) << to_string(drift);
}

}  // namespace
}  // namespace kvarena
