// What an operator sees over HTTP of a cache whose layers keep different data.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"
#include "kvarena/health/health_monitor.hpp"
#include "kvarena/health/health_server.hpp"

#include "support/manager_access.hpp"
#include "support/raw_client.hpp"
#include "support/status_matchers.hpp"
#include "support/text_matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <memory>
#include <string>

namespace kvarena {

/// A fault, planted into the pages of a manager.
struct PagePoolProbe {
  static void lose_free_page(PagePool& pages) { --pages.num_free_; }
};

namespace test {
namespace {

using nlohmann::json;

constexpr std::int64_t kPages = 24;

/// Two layers keep all tokens, two a window of 32 tokens, one a state; a server watches the cache.
class GroupPoolTest : public testing::Test {
 protected:
  void SetUp() override {
    KvCacheOptions options;
    options.size.num_blocks = kPages;
    options.num_q_heads = 2;
    options.num_threads = 1;
    options.groups = groups_;
    auto made = KvCache::create(*device_, options);
    ASSERT_TRUE(made.is_ok()) << device_->describe(made.status());
    cache_ = std::make_unique<KvCache>(std::move(*made));
    ASSERT_TRUE(monitor_->watch(*cache_));
    server_ = std::make_unique<HealthServer>(HealthServer::start(*monitor_).value());
  }
  void TearDown() override {
    server_.reset();
    monitor_.reset();
  }

  /// One step of one sequence. Returns whether it got its pages.
  bool grow(SequenceId sequence, std::int32_t tokens) {
    EXPECT_OK(cache_->begin_step());
    const AppendDemand demand{sequence, tokens};
    const auto batch = cache_->append({&demand, 1});
    EXPECT_OK(cache_->end_step());
    return batch.is_ok();
  }
  /// Publishes, and looks at the pool.
  void look() {
    EXPECT_OK(cache_->begin_step());
    EXPECT_OK(cache_->end_step());
    static_cast<void>(monitor_->check_now());
  }
  std::string get(const char* path) { return ask(server_->port(), get_request(path)); }
  json pool() { return json::parse(body_of(get("/stats")))["pools"][0]; }

  const std::array<GroupLayer, 2> whole_{GroupLayer{.layer = 0}, GroupLayer{.layer = 3}};
  const std::array<GroupLayer, 2> windowed_{GroupLayer{.layer = 1}, GroupLayer{.layer = 2}};
  const std::array<GroupLayer, 1> recurrent_{GroupLayer{.layer = 4}};
  const StatePlane plane_{.dtype = DType::f32, .num_dims = 2, .shape = {32, 32}};
  const std::array<LayerGroup, 3> groups_{
      LayerGroup{.layers = whole_, .num_kv_heads = 2, .head_dim_k = 16},
      LayerGroup{.kind = PagedKind::window,
                 .layers = windowed_,
                 .num_kv_heads = 2,
                 .head_dim_k = 16,
                 .limit_tokens = 32},
      LayerGroup{.kind = PagedKind::state, .layers = recurrent_, .planes = {&plane_, 1}}};
  std::unique_ptr<HostDevice> device_ =
      HostDevice::create({.streams = HostStreams::inline_calls}).value();
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<HealthMonitor> monitor_ =
      std::make_unique<HealthMonitor>(HealthMonitor::create({.run_thread = false}).value());
  std::unique_ptr<HealthServer> server_;
};

TEST_F(GroupPoolTest, StatsHavePagesAndEveryGroup) {
  json seen = pool();
  EXPECT_EQ(seen["pages"]["total"], kPages);
  EXPECT_EQ(seen["pages"]["free"], kPages);
  EXPECT_EQ(seen["pages"]["page_bytes"], cache_->arena().bytes() / kPages);
  EXPECT_EQ(seen["pressure"]["level"], "normal") << "no block is carved, and every page is free";
  const SequenceId sequence = cache_->create_sequence().value();
  ASSERT_TRUE(grow(sequence, 100));
  look();
  seen = pool();
  std::string kinds;
  std::int64_t pages = 0;
  std::int64_t bytes = 0;
  for (const json& group : seen["groups"]) {
    kinds += group["kind"].get<std::string>() + " ";
    pages += group["pages"].get<std::int64_t>();
    bytes += (group["referenced"].get<std::int64_t>() * group["block_bytes"].get<std::int64_t>());
    const std::int64_t states =
        group["free"].get<std::int64_t>() + group["referenced"].get<std::int64_t>() +
        group["fenced"].get<std::int64_t>() + group["evictable"].get<std::int64_t>() +
        group["offline"].get<std::int64_t>();
    EXPECT_EQ(states,
              group["pages"].get<std::int64_t>() * group["blocks_per_page"].get<std::int64_t>());
  }
  EXPECT_HAS(kinds, "full");
  EXPECT_HAS(kinds, "window");
  EXPECT_HAS(kinds, "state");
  EXPECT_EQ(seen["pages"]["of_groups"], pages);
  EXPECT_EQ(seen["pages"]["free"], kPages - pages);
  const json& details = seen["details"];
  EXPECT_EQ(details["explanation"]["pages"]["free"], kPages - pages);
  ASSERT_EQ(details["holders"].size(), 1U);
  EXPECT_EQ(details["holders"][0]["bytes"], bytes) << "of all groups";
}

TEST_F(GroupPoolTest, MetricsHaveTheLabelsOfEveryGroup) {
  ASSERT_TRUE(grow(cache_->create_sequence().value(), 100));
  look();
  const std::string text = get("/metrics");
  const auto groups = cache_->manager().groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupStats stats = cache_->manager().group_stats(static_cast<std::int32_t>(g));
    EXPECT_HAS(text, "kvarena_group_blocks{pool=\"default\",group=\"" + std::to_string(g) +
                         "\",kind=\"" + std::string(name_of(groups[g].kind)) +
                         "\",state=\"referenced\"} " + std::to_string(stats.referenced) + "\n");
  }
  EXPECT_HAS(text, "kvarena_pool_pages{pool=\"default\"} " + std::to_string(kPages) + "\n");
}

TEST_F(GroupPoolTest, PressureIsThatOfPages) {
  const SequenceId sequence = cache_->create_sequence().value();
  while (grow(sequence, 16)) {
  }
  look();
  const json seen = pool();
  const auto free = seen["pages"]["free"].get<std::int64_t>();
  EXPECT_LE(free, 2) << "one more block of each group does not fit";
  EXPECT_EQ(seen["pressure"]["level"], free == 0             ? "exhausted"
                                       : free * 20 <= kPages ? "critical"
                                                             : "elevated");
  EXPECT_EQ(seen["pressure"]["cause"], "blocks");
  EXPECT_GT(seen["blocks"]["exhaustions"], 0);
  ASSERT_OK(cache_->destroy(sequence));
  look();
  EXPECT_EQ(pool()["pressure"]["level"], "normal");
}

TEST_F(GroupPoolTest, AFaultOfPagesMakesTheProcessUnhealthy) {
  ASSERT_TRUE(grow(cache_->create_sequence().value(), 20));
  look();
  EXPECT_EQ(status_of(get("/health")), 200);
  PagePoolProbe::lose_free_page(*parts_of(cache_->manager()).pool.pages());
  look();
  const std::string answer = get("/health");
  EXPECT_EQ(status_of(answer), 503);
  EXPECT_HAS(answer, "accounts_violated");
  EXPECT_HAS(answer, "pages free");
  EXPECT_HAS(get("/metrics"), "kvarena_audit_failed{pool=\"default\"} 1");
}

}  // namespace
}  // namespace test
}  // namespace kvarena
