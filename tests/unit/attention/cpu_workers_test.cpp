#include "kvarena/attention/cpu_workers.hpp"

#include <gtest/gtest.h>

#include <array>
#include <utility>

namespace kvarena {
namespace {

TEST(CpuWorkers, EveryWorkerRunsOncePerRound) {
  for (const std::int32_t threads : {1, 2, 3, 7}) {
    auto workers = CpuWorkers::create(threads);
    ASSERT_TRUE(workers.is_ok());
    ASSERT_EQ(workers->num_threads(), threads);
    std::array<int, 8> calls{};  // each worker writes its own; run makes them visible
    for (int round = 1; round <= 200; ++round) {
      workers->run([](void* counts, std::int32_t worker) { ++static_cast<int*>(counts)[worker]; },
                   calls.data());
      for (std::int32_t w = 0; w < threads; ++w)
        ASSERT_EQ(calls[static_cast<std::size_t>(w)], round);
    }
    EXPECT_EQ(calls[static_cast<std::size_t>(threads)], 0);
  }
}

TEST(CpuWorkers, RefusesNonsense) {
  for (const std::int32_t threads : {0, -1, CpuWorkers::kMaxThreads + 1}) {
    const Status status = CpuWorkers::create(threads).status();
    EXPECT_EQ(status.code, StatusCode::invalid_argument);
    EXPECT_EQ(status.resource, Resource::num_threads);
  }
}

TEST(CpuWorkers, MovesAndIsReplaced) {
  auto first = CpuWorkers::create(3);
  auto second = CpuWorkers::create(2);
  CpuWorkers workers = std::move(first).value();
  workers = std::move(second).value();
  EXPECT_EQ(workers.num_threads(), 2);
  int calls[2] = {};
  workers.run([](void* counts, std::int32_t worker) { ++static_cast<int*>(counts)[worker]; },
              calls);
  EXPECT_EQ(calls[0] + calls[1], 2);
}

TEST(CpuWorkers, MayEndWithoutEverRunning) {
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(CpuWorkers::create(4).is_ok());
}

}  // namespace
}  // namespace kvarena
