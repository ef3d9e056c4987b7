// cache_footprint and fit_cache under random options: monotone, exact, and no number overflows.
// Seeds and lengths: KVARENA_SEED, KVARENA_TEST_ROUNDS; RC_PARAMS as rapidcheck prints it.

#include "support/seeded_properties.hpp"
#include "unit/cache/footprint.hpp"

#include "kvarena/cache/cache_footprint.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>
#include <limits>
#include <string>

namespace kvarena {
namespace {

using CacheFootprintProperties = test::SeededProperties<300>;

CacheTarget any_target() {
  return {.kind = *rc::gen::element(DeviceKind::host, DeviceKind::cuda),
          .num_threads = *rc::gen::inRange(1, 65),
          .num_sms = *rc::gen::inRange(1, 200)};
}

/// Options that some cache can have.
KvCacheOptions any_options() {
  const std::int32_t kv_heads = *rc::gen::inRange(1, 17);
  return {.layout = {.num_layers = *rc::gen::inRange(1, 81),
                     .num_kv_heads = kv_heads,
                     .head_dim_k = *rc::gen::element(8, 64, 96, 128, 192, 256),
                     .dtype = *rc::gen::element(DType::f32, DType::f16, DType::bf16),
                     .block_size_tokens = *rc::gen::element(1, 8, 16, 24, 64)},
          .size = {},
          .order = *rc::gen::element(BlockOrder::block_major, BlockOrder::layer_major),
          .num_q_heads = kv_heads * *rc::gen::inRange(1, 20),
          .max_sequences = *rc::gen::inRange(1, 2000),
          .max_sequence_tokens = *rc::gen::element<std::int64_t>(0, 1, 1000, 8192, 131'072),
          .max_batch_rows = *rc::gen::inRange(0, 300),
          .max_step_tokens = *rc::gen::inRange<std::int64_t>(1, 16'384),
          .max_batch_blocks = *rc::gen::element<std::int64_t>(0, 1, 5000),
          .window_tokens = *rc::gen::element(0, 4096),
          .steps_in_flight = *rc::gen::inRange(1, 17),
          .max_decode_tokens = *rc::gen::inRange(1, 9)};
}

std::int64_t any_budget() {
  return *rc::gen::inRange<std::int64_t>(0, 200) *
             *rc::gen::element<std::int64_t>(1 << 20, 1 << 30) +
         *rc::gen::inRange<std::int64_t>(0, 1 << 20);
}

/// Blocks of the largest cache; 0 when not even one fits. Anything else than that fails.
std::int64_t blocks_within(const KvCacheOptions& options, const CacheTarget& target,
                           std::int64_t budget_bytes) {
  const Result<KvCacheOptions> fitted = fit_cache(options, target, budget_bytes);
  if (fitted) return fitted->size.num_blocks;
  if (fitted.status().code != StatusCode::insufficient_vram) RC_FAIL(describe(fitted.status()));
  return 0;
}

TEST_F(CacheFootprintProperties, MoreMemoryNeverHasFewerBlocks) {
  EXPECT_TRUE(rc::check([] {
    const CacheTarget target = any_target();
    const KvCacheOptions options = any_options();
    const std::int64_t less = any_budget();
    const std::int64_t more = less + any_budget();
    RC_ASSERT(blocks_within(options, target, less) <= blocks_within(options, target, more));
  }));
}

TEST_F(CacheFootprintProperties, OneBlockMoreNeverFitsOrIsNoCache) {
  EXPECT_TRUE(rc::check([] {
    const CacheTarget target = any_target();
    KvCacheOptions options = any_options();
    const std::int64_t budget = any_budget();
    const std::int64_t blocks = blocks_within(options, target, budget);
    options.size.num_blocks = blocks + 1;
    const Result<CacheFootprint> more = cache_footprint(options, target);
    const bool is_largest = !more && more.status().code == StatusCode::invalid_argument;
    const bool is_too_large = more && more->device_bytes() > budget;
    RC_ASSERT(is_largest || is_too_large);
    RC_CLASSIFY(is_largest, "the largest that there is");
    RC_CLASSIFY(blocks > 0, "something fits");
    if (blocks == 0) return;
    options.size.num_blocks = blocks;
    RC_ASSERT(cache_footprint(options, target).value().device_bytes() <= budget);
  }));
}

TEST_F(CacheFootprintProperties, AskingForMoreNeverLeavesMoreBlocks) {
  using Grow = std::function<void(KvCacheOptions&, std::int32_t)>;
  const Grow growths[] = {
      [](KvCacheOptions& o, std::int32_t by) { o.max_sequences += by; },
      [](KvCacheOptions& o, std::int32_t by) {
        o.max_sequence_tokens = o.max_sequence_tokens == 0 ? 0 : o.max_sequence_tokens + by;
      },
      [](KvCacheOptions& o, std::int32_t by) {
        o.max_batch_rows = o.max_batch_rows == 0 ? 0 : o.max_batch_rows + by;
      },
      [](KvCacheOptions& o, std::int32_t by) { o.max_step_tokens += by; },
      [](KvCacheOptions& o, std::int32_t) { o.window_tokens = 4096; },
      [](KvCacheOptions& o, std::int32_t) { o.steps_in_flight = 16; },
      [](KvCacheOptions& o, std::int32_t) { o.max_decode_tokens = 8; },
      [](KvCacheOptions& o, std::int32_t) { o.max_sequence_tokens = 0; },
      [](KvCacheOptions& o, std::int32_t by) { o.layout.num_layers += by; },
  };
  for (std::size_t i = 0; i < std::size(growths); ++i) {
    EXPECT_TRUE(rc::check([&] {
      const CacheTarget target = any_target();
      const KvCacheOptions options = any_options();
      const std::int64_t budget = any_budget();
      KvCacheOptions larger = options;
      growths[i](larger, *rc::gen::inRange(0, 1000));
      RC_ASSERT(blocks_within(larger, target, budget) <= blocks_within(options, target, budget));
    })) << "growth "
        << i;
  }
}

/// Any number at all, small and huge ones alike.
template <class T>
T any_number() {
  using Limits = std::numeric_limits<T>;
  const T edge = *rc::gen::element<T>(Limits::min(), -1, 0, 1, Limits::max());
  const T shift = *rc::gen::inRange<T>(0, Limits::digits);
  const T numbers[] = {edge, *rc::gen::arbitrary<T>(), static_cast<T>(T{1} << shift)};
  return numbers[*rc::gen::inRange(0, 3)];
}

void make_absurd(KvCacheOptions& o, CacheTarget& target) {
  const auto spoil = [](auto& number) {
    using Number = std::remove_reference_t<decltype(number)>;
    if (*rc::gen::inRange(0, 20) == 0) number = any_number<Number>();
  };
  spoil(o.layout.num_layers);
  spoil(o.layout.num_kv_heads);
  spoil(o.layout.head_dim_k);
  spoil(o.layout.head_dim_v);
  spoil(o.layout.block_size_tokens);
  switch (*rc::gen::inRange(0, 4)) {
    case 0: o.size = {.num_blocks = any_number<std::int64_t>()}; break;
    case 1: o.size = {.budget_bytes = any_number<std::int64_t>()}; break;
    case 2: o.size = {.all_free_but_bytes = any_number<std::int64_t>()}; break;
    default: o.size = {.num_blocks = 1000};
  }
  spoil(o.num_q_heads);
  spoil(o.max_sequences);
  spoil(o.max_sequence_tokens);
  spoil(o.max_step_tokens);
  spoil(o.max_batch_blocks);
  spoil(o.watermark_blocks);
  spoil(o.window_tokens);
  spoil(o.steps_in_flight);
  spoil(o.num_threads);
  spoil(o.max_decode_tokens);
  spoil(target.num_threads);
  spoil(target.num_sms);
  spoil(target.bounce_bytes);
}

/// Every part within what a device gives in one piece, times the pieces.
bool is_sane(const CacheFootprint& f) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 48;
  const auto within = [](std::int64_t bytes, std::int64_t pieces) {
    return bytes >= 0 && bytes <= pieces * kPiece;
  };
  return f.num_blocks >= 1 && f.pool_bytes >= f.num_blocks && within(f.pool_bytes, 1) &&
         within(f.workspace_bytes, 32) && within(f.table_bytes, 1) && within(f.staging_bytes, 2) &&
         f.device_bytes() >= f.pool_bytes && f.device_allocations >= 1;
}

bool is_clear(const Status& status) {
  return status.code == StatusCode::invalid_argument || status.code == StatusCode::unsupported ||
         status.code == StatusCode::insufficient_vram;
}

TEST_F(CacheFootprintProperties, AbsurdSizesEndInAFootprintOrAClearRefusal) {
  EXPECT_TRUE(rc::check([] {
    CacheTarget target = any_target();
    KvCacheOptions options = any_options();
    make_absurd(options, target);
    const Result<CacheFootprint> footprint =
        cache_footprint(options, target, any_number<std::int64_t>());
    const bool is_answered = footprint ? is_sane(*footprint) : is_clear(footprint.status());
    RC_ASSERT(is_answered);
    RC_CLASSIFY(footprint.is_ok(), "footprint");
    const auto budget = any_number<std::int64_t>();
    const Result<KvCacheOptions> fitted = fit_cache(options, target, budget);
    RC_CLASSIFY(fitted.is_ok(), "fitted");
    if (fitted) {
      const Result<CacheFootprint> its = cache_footprint(*fitted, target);
      RC_ASSERT(its.is_ok());
      RC_ASSERT(is_sane(*its) && its->device_bytes() <= budget);
    } else {
      RC_ASSERT(is_clear(fitted.status()));
    }
  }));
}

}  // namespace
}  // namespace kvarena
