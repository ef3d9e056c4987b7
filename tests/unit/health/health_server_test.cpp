#include "kvarena/health/health_server.hpp"

#include "support/lying_device.hpp"
#include "support/raw_client.hpp"
#include "support/text_matchers.hpp"

#include "kvarena/device/host_device.hpp"
#include "kvarena/health/health_monitor.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>

namespace kvarena {
namespace {

using nlohmann::json;
using test::ask;
using test::body_of;
using test::get_request;
using test::status_of;

constexpr const char* kToken = "0123456789abcdef";

/// A host device with one allocation, a pool of 64 blocks, a monitor without a thread.
class HealthServerTest : public testing::Test {
 protected:
  void SetUp() override {
    static_cast<void>(device_->allocate(
        {.bytes = 4096, .purpose = MemoryPurpose::model_weights, .description = "weights"}));
    ASSERT_TRUE(monitor_.watch(*device_));
    ASSERT_TRUE(monitor_.watch(publisher_));
  }
  HealthServer start(HealthServerOptions options = {}) {
    options.request_limit_ms = 60'000;
    return HealthServer::start(monitor_, options).value();
  }

  /// Host memory that nobody gave out passes for an allocation.
  void violate_residency() {
    AllocationRecord record;
    record.pointer = foreign_;
    record.bytes = sizeof foreign_;
    record.purpose = MemoryPurpose::model_weights;
    record.description = "foreign";
    ASSERT_TRUE(device_->tracker().record(record));
    static_cast<void>(monitor_.check_now());
  }

  char foreign_[64] = {};
  std::unique_ptr<HostDevice> device_ = HostDevice::create({.capacity_bytes = 1 << 24}).value();
  BlockManager manager_ = BlockManager::create({.num_blocks = 64}).value();
  BlockTables tables_ =
      BlockTables::create(manager_, {.block_size_tokens = 16, .max_sequences = 8}).value();
  StepPublisher publisher_ = StepPublisher::create(manager_, tables_).value();
  HealthMonitor monitor_ = HealthMonitor::create({.run_thread = false}).value();
};

TEST_F(HealthServerTest, TheFirstCheckComesBeforeThePortOpens) {
  EXPECT_EQ(monitor_.report().checks.completed, 0u);
  const HealthServer server = start();
  EXPECT_EQ(monitor_.report().checks.completed, 1u);
  const HealthServer second = start();
  EXPECT_EQ(monitor_.report().checks.completed, 1u) << "one is enough";
  EXPECT_NE(server.port(), second.port());
  EXPECT_EQ(server.url(), "http://127.0.0.1:" + std::to_string(server.port()));
}

TEST_F(HealthServerTest, Health) {
  const HealthServer server = start();
  const std::string response = ask(server.port(), get_request("/health"));
  EXPECT_EQ(status_of(response), 200) << response;
  const json health = json::parse(body_of(response));
  EXPECT_EQ(health["status"], "healthy");
  EXPECT_EQ(health["resident"], false) << "host memory is never VRAM";
  EXPECT_EQ(health["policy"], "allow_host");
  EXPECT_EQ(health["vram_bytes_used"], 4096);
  EXPECT_EQ(health["usage"]["ModelWeights"], 4096);
  EXPECT_TRUE(health["last_check_secs"].is_number());
}

TEST_F(HealthServerTest, UnhealthyIs503WithReasons) {
  const HealthServer server = start();
  violate_residency();
  const std::string response = ask(server.port(), get_request("/health"));
  EXPECT_EQ(status_of(response), 503) << response;
  const json health = json::parse(body_of(response));
  EXPECT_EQ(health["status"], "unhealthy");
  ASSERT_FALSE(health["reasons"].empty());
  EXPECT_EQ(health["reasons"][0]["code"], "residency_violated");
  EXPECT_HAS(ask(server.port(), get_request("/metrics")), "\nkvarena_healthy 0\n");
  ASSERT_TRUE(device_->tracker().erase(foreign_));
  monitor_.acknowledge();
  static_cast<void>(monitor_.check_now());
  EXPECT_EQ(status_of(ask(server.port(), get_request("/health"))), 200);
}

TEST_F(HealthServerTest, AnIllnessThatNoRestartCuresLeavesTheProcessAlive) {
  const HealthServer server = start();
  EXPECT_EQ(body_of(ask(server.port(), get_request("/live"))), "alive\n");
  violate_residency();
  EXPECT_EQ(status_of(ask(server.port(), get_request("/health"))), 503);
  EXPECT_EQ(status_of(ask(server.port(), get_request("/live"))), 200);
  ASSERT_TRUE(device_->tracker().erase(foreign_));
}

TEST_F(HealthServerTest, OnlyALostDeviceIsNotAlive) {
  test::LyingDevice lost(*device_);
  ASSERT_TRUE(monitor_.watch(lost));
  lost.set_lost(700);
  const HealthServer server = start();
  EXPECT_EQ(status_of(ask(server.port(), get_request("/health"))), 503);
  EXPECT_EQ(status_of(ask(server.port(), get_request("/live"))), 503);
  ASSERT_TRUE(monitor_.unwatch(lost));
}

TEST_F(HealthServerTest, StatsShowHoldersOfTheNextPublication) {
  const HealthServer server = start();
  const SequenceId sequence = tables_.create_sequence().value();
  const AppendDemand demand{sequence, 40};
  ASSERT_TRUE(tables_.append({&demand, 1}));
  // The first asks, the writer publishes, the second shows.
  static_cast<void>(ask(server.port(), get_request("/stats")));
  publisher_.publish({.steps_ended = 1});
  const json stats = json::parse(body_of(ask(server.port(), get_request("/stats"))));
  const json& pool = stats["pools"][0];
  EXPECT_EQ(pool["step"], 1);
  EXPECT_EQ(pool["blocks"]["referenced"], 3);
  EXPECT_EQ(pool["tables"]["tokens"], 40);
  ASSERT_EQ(pool["details"]["holders"].size(), 1u) << pool["details"];
  EXPECT_EQ(pool["details"]["holders"][0]["references"], 3);
  EXPECT_EQ(pool["details"]["holders"][0]["number"], sequence.value);
  ASSERT_EQ(stats["devices"][0]["largest_allocations"].size(), 1u);
  EXPECT_EQ(stats["devices"][0]["largest_allocations"][0]["description"], "weights");
}

TEST_F(HealthServerTest, TokensGuardWhatIsReachable) {
  EXPECT_EQ(HealthServer::start(monitor_, {.address = "0.0.0.0"}).status().option, Option::token);
  EXPECT_EQ(HealthServer::start(monitor_, {.address = "0.0.0.0", .token = "short"}).status(),
            invalid_option(Option::token, 5, 16, 256));
  EXPECT_EQ(HealthServer::start(monitor_, {.token = "short"}).status().option, Option::token);
  const HealthServer server = start({.address = "0.0.0.0", .token = kToken});
  EXPECT_EQ(status_of(ask(server.port(), get_request("/health"))), 401);
  const std::string header = "Authorization: Bearer " + std::string(kToken) + "\r\n";
  EXPECT_EQ(status_of(ask(server.port(), get_request("/health", header))), 200);
}

TEST_F(HealthServerTest, BadOptionsAreNamed) {
  const auto refused = [&](const HealthServerOptions& options) {
    const Status status = HealthServer::start(monitor_, options).status();
    EXPECT_NE(status.code, StatusCode::ok);
    return status.option;
  };
  EXPECT_EQ(refused({.max_connections = 0}), Option::max_connections);
  EXPECT_EQ(refused({.max_connections = 1025}), Option::max_connections);
  EXPECT_EQ(refused({.max_request_bytes = 255}), Option::max_request_bytes);
  EXPECT_EQ(refused({.max_request_bytes = (1 << 20) + 1}), Option::max_request_bytes);
  EXPECT_EQ(refused({.request_limit_ms = 9}), Option::request_limit_ms);
  EXPECT_EQ(refused({.request_limit_ms = 600'001}), Option::request_limit_ms);
  EXPECT_EQ(refused({.address = "example.org"}), Option::address);
  const HealthServer server = start();
  const Status taken = HealthServer::start(monitor_, {.port = server.port()}).status();
  EXPECT_EQ(taken.code, StatusCode::io_error);
  EXPECT_EQ(taken.native, EADDRINUSE);
}

TEST_F(HealthServerTest, MovesAndStops) {
  HealthServer first = start();
  const std::uint16_t port = first.port();
  HealthServer second = std::move(first);
  EXPECT_EQ(status_of(ask(port, get_request("/health"))), 200);
  second = start();
  EXPECT_EQ(ask(port, get_request("/health")), "<refused>");
}

}  // namespace
}  // namespace kvarena
