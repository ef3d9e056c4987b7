// snapshot() from other threads while an engine runs: whole, balanced and never going back.

#include "support/devices.hpp"
#include "unit/cache/cache_game.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvarena {
namespace {

/// Reads until told to stop and once more; false when a snapshot was torn or older than the one
/// before.
bool watch(const KvCache& cache, const std::atomic<bool>& done) {
  std::uint64_t last = 0;
  bool is_right = true;
  for (bool is_last = false; !is_last;) {
    is_last = done;
    const PoolSnapshot seen = cache.snapshot();
    is_right &= seen.step >= last && seen.blocks.balanced();
    is_right &= seen.tables.entries == seen.blocks.references;
    is_right &= seen.tables.tokens <= 16 * seen.tables.entries;
    last = seen.step;
  }
  return is_right && last > 0;
}

class KvCacheThreads : public ::testing::TestWithParam<DeviceKind> {};
INSTANTIATE_TEST_SUITE_P(Devices, KvCacheThreads, ::testing::ValuesIn(test::device_kinds()),
                         test::kind_name);

TEST_P(KvCacheThreads, SnapshotsAreWholeWhileAnEngineRuns) {
  KVARENA_NEEDS_DEVICE(GetParam());
  const auto device = test::make_device(GetParam());
  ASSERT_NE(device, nullptr);
  test::EngineOptions options;
  options.cache = {.layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 16},
                   .size = {.num_blocks = 24},
                   .num_q_heads = 4,
                   .max_sequences = 8,
                   .max_step_tokens = 128,
                   .window_tokens = 9,
                   .steps_in_flight = 3,
                   .num_threads = 3};
  options.io_dtype = DType::f16;
  test::ShadowEngine engine(*device, options);
  ASSERT_OK(engine.created());
  std::atomic<bool> done{false};
  std::array<bool, 2> is_right{};
  std::vector<std::thread> watchers;
  for (bool& result : is_right) {
    watchers.emplace_back([&] { result = watch(engine.cache(), done); });
  }
  test::CacheGame game(engine, {.num_steps = 120});
  game.play();
  done = true;
  for (std::thread& watcher : watchers) watcher.join();
  EXPECT_TRUE(is_right[0]);
  EXPECT_TRUE(is_right[1]);
}

}  // namespace
}  // namespace kvarena
