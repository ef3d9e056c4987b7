// The monitor on a GPU: memory that is none of its own is found within a period, whatever kind it
// is, and told in full. The monitor's thread runs on a clock that the test sets.

#include "support/gpu.hpp"
#include "support/log_capture.hpp"
#include "support/manual_clock.hpp"
#include "support/raw_client.hpp"
#include "support/status_matchers.hpp"
#include "support/text_matchers.hpp"
#include "unit/health/monitored_pool.hpp"

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/health/health_monitor.hpp"
#include "kvarena/health/health_server.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace kvarena::test {
namespace {

constexpr std::uint64_t kBytes = 1 << 20;

/// One kind of memory that is not VRAM.
struct ForeignMemory {
  const char* name;
  const char* place;  // as the log line calls it
  void* (*allocate)();
  void (*free)(void*);
};
std::ostream& operator<<(std::ostream& out, const ForeignMemory& memory) {
  return out << memory.name;
}

void* pinned(unsigned flags) {
  void* pointer = nullptr;
  return cudaHostAlloc(&pointer, kBytes, flags) == cudaSuccess ? pointer : nullptr;
}

const ForeignMemory kForeign[] = {
    {"managed", "managed",
     [] {
       void* pointer = nullptr;
       return cudaMallocManaged(&pointer, kBytes) == cudaSuccess ? pointer : nullptr;
     },
     [](void* pointer) { static_cast<void>(cudaFree(pointer)); }},
    {"pinned", "pinned_host", [] { return pinned(cudaHostAllocDefault); },
     [](void* pointer) { static_cast<void>(cudaFreeHost(pointer)); }},
    {"mapped", "pinned_host", [] { return pinned(cudaHostAllocMapped); },
     [](void* pointer) { static_cast<void>(cudaFreeHost(pointer)); }},
    {"pageable", "pageable_host", [] { return std::malloc(kBytes); },
     [](void* pointer) { std::free(pointer); }},
};

class CudaHealthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_GPU();
    clock_.advance(1'000'000 * kSecond);
    device_ = make_cuda();
    ASSERT_NE(device_, nullptr);
    auto monitor = HealthMonitor::create({.clock = &clock_, .on_unhealthy = [this](const auto& r) {
                                            const std::scoped_lock lock(mutex_);
                                            called_.push_back(r);
                                          }});
    ASSERT_OK(monitor);
    monitor_ = std::make_unique<HealthMonitor>(std::move(*monitor));
  }
  /// Lets a period go by and returns the report after the check that this brings: one that began
  /// then, not one that was under way.
  HealthReport pass_period() {
    clock_.advance(60 * kSecond);
    monitor_->wake();
    for (;; std::this_thread::yield()) {
      HealthReport report = monitor_->report();
      const CheckFigures& checks = report.checks;
      if (checks.last_ended_ns - checks.last_duration_ns == clock_.now_ns()) return report;
    }
  }
  /// What on_unhealthy said, once it has said something.
  std::vector<HealthReason> await_call() {
    for (;; std::this_thread::yield()) {
      const std::scoped_lock lock(mutex_);
      if (!called_.empty()) return called_;
    }
  }

  ManualClock clock_;
  std::unique_ptr<CudaDevice> device_;
  std::mutex mutex_;
  std::vector<HealthReason> called_;
  std::unique_ptr<HealthMonitor> monitor_;  // goes first
};

class CudaForeignMemoryTest : public CudaHealthTest,
                              public ::testing::WithParamInterface<ForeignMemory> {
 protected:
  /// What a load balancer is told.
  static void expect_answer(const HealthServer& server, int status, const std::string& part) {
    const std::string answer = ask(server.port(), get_request("/health"));
    EXPECT_EQ(status_of(answer), status) << answer;
    EXPECT_HAS(body_of(answer), part) << part << " is not in: " << answer;
  }
};
INSTANTIATE_TEST_SUITE_P(Memory, CudaForeignMemoryTest, ::testing::ValuesIn(kForeign),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(CudaForeignMemoryTest, IsFoundWithinAPeriodAndForgivenOnceItIsGone) {
  const auto own = device_->allocate({.bytes = 4096, .purpose = MemoryPurpose::kv_cache});
  ASSERT_OK(own);
  ASSERT_OK(monitor_->watch(*device_));
  HealthReport report = pass_period();
  ASSERT_TRUE(report.healthy && report.resident) << text_of(report);
  const auto server = HealthServer::start(*monitor_);
  ASSERT_OK(server);
  expect_answer(*server, 200, "\"resident\":true");

  void* const foreign = GetParam().allocate();
  ASSERT_NE(foreign, nullptr);
  const LogCapture log(LogLevel::critical);
  ASSERT_OK(register_memory(*device_,
                            {.pointer = foreign,
                             .bytes = kBytes,
                             .purpose = MemoryPurpose::model_weights,
                             .description = "test weights"},
                            RegisterCheck::defer));
  report = pass_period();
  EXPECT_FALSE(report.healthy);
  EXPECT_FALSE(report.resident);
  ASSERT_EQ(codes(report), std::vector{HealthReasonCode::residency_violated}) << text_of(report);
  EXPECT_EQ(report.devices.at(0).allocations_checked, 2U);
  EXPECT_EQ(await_call().at(0).text, report.reasons[0].text);
  ASSERT_EQ(log.lines().size(), 1U) << text_of(report);
  std::ostringstream address;
  address << foreign;
  for (const std::string& part :
       {std::string("VRAM residency violated"), address.str(), std::string("ModelWeights"),
        std::string("test weights"), std::string(GetParam().place)}) {
    EXPECT_TRUE(log.contains(LogLevel::critical, part)) << part << " in: " << log.lines()[0].text;
  }
  std::printf("%s\n", log.lines()[0].text.c_str());  // for people: what the driver said
  expect_answer(*server, 503, "\"resident\":false");
  expect_answer(*server, 503, "\"code\":\"residency_violated\"");

  ASSERT_OK(unregister_memory(*device_, foreign));
  GetParam().free(foreign);
  report = pass_period();
  EXPECT_TRUE(report.resident);
  EXPECT_FALSE(report.healthy) << "nobody has acknowledged it";
  expect_answer(*server, 503, "\"resident\":true");
  monitor_->acknowledge();
  report = pass_period();
  EXPECT_TRUE(report.healthy && report.resident) << text_of(report);
  expect_answer(*server, 200, "\"resident\":true");
  EXPECT_OK(device_->free(*own));
}

TEST_F(CudaHealthTest, ACacheIsResidentAndItsMemoryIsAccountedFor) {
  auto cache = KvCache::create(
      *device_,
      {.layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 64, .dtype = DType::bf16},
       .size = {.num_blocks = 64},
       .num_q_heads = 2});
  ASSERT_OK(cache);
  ASSERT_OK(monitor_->watch(*cache));
  const HealthReport report = pass_period();
  EXPECT_TRUE(report.healthy && report.resident) << text_of(report);
  ASSERT_EQ(report.devices.size(), 1U);
  const DeviceHealth& device = report.devices[0];
  EXPECT_GT(device.allocations_checked, 1U);
  EXPECT_GT(device.usage.total.bytes, 0U);
  EXPECT_GT(device.memory.total_bytes, device.memory.free_bytes);
  ASSERT_TRUE(device.drift.has_value());
  std::printf("%s\n", to_string(*device.drift).c_str());
  monitor_.reset();  // the cache goes first otherwise
}

}  // namespace
}  // namespace kvarena::test
