// kvarena replay --http: served during and after the run, as another process sees it.

#include "device/forwarding_device.hpp"
#include "health/render/json.hpp"
#include "tools/replay/replay_server.hpp"
#include "unit/replay/trace_text.hpp"
#include "unit/tools/child_command.hpp"
#include "unit/tools/command_run.hpp"

#include "kvarena/base/violation.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <vector>

namespace kvarena::tools {
namespace {

using nlohmann::json;
using test::TempFile;

/// "http://127.0.0.1:PORT" of "serving http://127.0.0.1:PORT/health, ...".
std::string url_in(const std::string& message) {
  const std::size_t begin = message.find("http://");
  return begin == message.npos ? "" : message.substr(begin, message.find("/health") - begin);
}

/// `kvarena replay` of one short request with `options`.
Outcome replay(const std::string& options) {
  static const TempFile trace(test::mooncake_trace({{0, 100, 5}}));
  return run_line("replay " + trace.path() + " " + options);
}

TEST(ReplayHttp, ServesAndLingersUntilInterrupted) {
  const TempFile trace(test::mooncake_trace({{0, 100, 5}, {10, 600, 20}, {20, 50, 40}}));
  for (const int signal : {SIGINT, SIGTERM}) {
    ChildCommand replay({"replay", trace.path(), "--blocks", "50", "--http", "127.0.0.1:0",
                         "--linger", "--json", "/dev/null"});
    const std::string url = url_in(replay.wait_for("serving http"));
    ASSERT_NE(url, "");
    ASSERT_NE(replay.wait_for("Ctrl-C"), "");
    const auto stats = parsed(run({"monitor", "--url", url, "--once", "--json", "-"}));
    EXPECT_EQ(stats["health"]["status"], "healthy");
    ASSERT_EQ(stats["pools"].size(), 1u);
    const json& pool = stats["pools"][0];
    EXPECT_EQ(pool["name"], "replay");
    EXPECT_EQ(pool["blocks"]["total"], 50);
    EXPECT_EQ(pool["blocks"]["free"], 50);
    EXPECT_EQ(pool["tables"]["sequences_ever"], 3);
    EXPECT_GT(pool["step"].get<int>(), 40);
    EXPECT_TRUE(pool["pressure"]["age_secs"].is_number()) << pool["pressure"];
    EXPECT_EQ(replay.end(signal), 0);
  }
}

TEST(ReplayHttp, PreemptionsAreReported) {
  const TempFile trace(test::mooncake_trace({{0, 100, 200}, {0, 100, 200}, {0, 100, 200}}));
  ChildCommand replay({"replay", trace.path(), "--blocks", "30", "--reserve", "none", "--watermark",
                       "0", "--http", "127.0.0.1:0", "--linger"});
  const std::string url = url_in(replay.wait_for("serving http"));
  ASSERT_NE(url, "");
  ASSERT_NE(replay.wait_for("Ctrl-C"), "");
  const auto pool = parsed(run({"monitor", "--url", url, "--once", "--json", "-"}))["pools"][0];
  EXPECT_GT(pool["preemptions"].get<int>(), 0);
  EXPECT_EQ(pool["waiting_requests"], 0);
  EXPECT_EQ(replay.end(SIGTERM), 0);
}

TEST(ReplayHttp, EndsByItselfWithoutLinger) {
  EXPECT_TRUE(ended(replay("--http localhost:0"), ExitCode::ok, {"serving http://"}));
}

TEST(ReplayHttp, ARunWithoutAPoolDoesNotLinger) {
  const auto seen = run_line("replay /no/such/trace --http 127.0.0.1:0 --linger");
  EXPECT_EQ(seen.code, ExitCode::bad_input) << seen.err;
}

TEST(ReplayHttp, WhatIsWrongIsNamed) {
  EXPECT_EQ(replay("--http 15858").code, ExitCode::usage);
  EXPECT_EQ(replay("--linger").code, ExitCode::usage);
  EXPECT_EQ(replay("--http 127.0.0.1:0 --http-token-file /no/such").code, ExitCode::bad_input);
  const TempFile blank("\n");
  const auto no_token = replay("--http 127.0.0.1:0 --http-token-file " + blank.path());
  EXPECT_EQ(no_token.code, ExitCode::bad_input)
      << "a file without a token is not served without one";
  EXPECT_TRUE(contains(no_token.err, "first line is empty"));
  EXPECT_TRUE(
      ended(replay("--http 0.0.0.0:0"), ExitCode::usage,
            {"0.0.0.0 is not loopback and needs a token; none was given", "--http-token-file"}));
  const TempFile short_one("short\n");
  EXPECT_TRUE(ended(replay("--http 0.0.0.0:0 --http-token-file " + short_one.path()),
                    ExitCode::usage, {"the token of 5 characters is none"}));
  EXPECT_TRUE(ended(replay("--http example.org:0"), ExitCode::usage,
                    {"\"example.org\" is no numeric address and not localhost"}));
}

TEST(ReplayHttp, TheAccountOfAReportReadsAsTheBlocksOfStats) {
  const auto account = parsed(replay("--blocks 50 --json -")).at("account");
  const Json blocks = blocks_json({});
  for (const auto& [name, ignored] : blocks.items()) {
    EXPECT_TRUE(account.contains(name)) << name;
  }
  EXPECT_EQ(account["total"], 50);
  EXPECT_EQ(account["available"], 50);
}

TEST(ReplayHttp, APortThatIsTakenIsNamed) {
  const int other = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(other, raw, length), 0);
  ASSERT_EQ(::listen(other, 1), 0);
  ASSERT_EQ(::getsockname(other, raw, &length), 0);
  const std::string taken = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  EXPECT_TRUE(ended(replay("--http " + taken), ExitCode::environment,
                    {taken + " is in use by another process"}));
  EXPECT_TRUE(ended(
      replay("--http [2001:db8::1]:9 --http-token-file " + TempFile("0123456789abcdef\n").path()),
      ExitCode::environment, {"cannot be listened on"}));
  ::close(other);
}

TEST(ReplayHttp, TheAddressIsToldEvenWhenQuiet) {
  const auto seen = replay("--quiet --http 127.0.0.1:0");
  EXPECT_EQ(seen.code, ExitCode::ok) << seen.err;
  EXPECT_TRUE(seen.err.starts_with("serving http://127.0.0.1:")) << seen.err;
  EXPECT_EQ(std::ranges::count(seen.err, '\n'), 1) << seen.err;
}

TEST(ReplayHttp, WantOfMemoryIsExplainedOnce) {
  testing::internal::CaptureStderr();
  const auto seen = replay("--attention sample --device cpu --blocks 100000000 --http 127.0.0.1:0");
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(ended(seen, ExitCode::does_not_fit, {"in use at the failure"}));
  EXPECT_TRUE(logged.starts_with("warning: allocation refused: not enough device memory: "))
      << logged;
  EXPECT_EQ(std::ranges::count(logged, '\n'), 1) << logged;
}

/// A server in this process, over a device with a cache.
class ReplayServerTest : public testing::Test {
 protected:
  static KvCacheOptions cache_options() {
    return {.layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 16, .dtype = DType::f16},
            .size = {.num_blocks = 32},
            .num_q_heads = 2,
            .num_threads = 1};
  }
  json stats() const {
    const auto seen = run({"monitor", "--url", url_in(err_.str()), "--once", "--json", "-"});
    return seen.code == ExitCode::ok ? json::parse(seen.out) : json(seen.err);
  }

  std::unique_ptr<HostDevice> device_ = HostDevice::create({.capacity_bytes = 1 << 26}).value();
  std::ostringstream out_;
  std::ostringstream err_;
  Console console_{out_, err_};
  ExitCode code_ = ExitCode::ok;
};

TEST_F(ReplayServerTest, MemoryOfTheRunIsCheckedAtItsBeginAndItsEnd) {
  std::unique_ptr<KvCache> cache;  // goes after the server
  const auto server = ReplayServer::start(console_, {"127.0.0.1", 0}, "", device_.get(), &code_);
  ASSERT_NE(server, nullptr) << err_.str();
  EXPECT_EQ(stats()["health"]["allocations_checked"], 0) << "there is none yet";
  auto made = KvCache::create(*device_, cache_options());
  ASSERT_TRUE(made) << describe(made.status());
  cache = std::make_unique<KvCache>(std::move(made).value());
  server->on_pool(cache->publisher());
  const auto expect_all_checked = [&] {
    const json seen = stats();
    ASSERT_TRUE(seen.is_object()) << seen;
    const json& device = seen["devices"][0];
    const auto usage = device_->tracker().breakdown();
    EXPECT_EQ(device["allocations_checked"], device_->tracker().allocations().size());
    EXPECT_EQ(seen["health"]["allocations_checked"], device["allocations_checked"]);
    EXPECT_EQ(device["drift"]["tracked_bytes"], usage.total.bytes);
  };
  expect_all_checked();
  ASSERT_GT(device_->tracker().allocations().size(), 0U);
  const auto more = device_->allocate({.bytes = 4096, .purpose = MemoryPurpose::kv_cache});
  ASSERT_TRUE(more);
  server->on_end(nullptr);
  expect_all_checked();
  EXPECT_TRUE(device_->free(*more));
}

/// Has no host memory left to answer with, once it is told so.
class StarvedDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void starve() { is_starved_ = true; }
  Result<MemoryInfo> memory_info() const override {
    if (is_starved_) throw std::bad_alloc();
    return ForwardingDevice::memory_info();
  }

 private:
  std::atomic<bool> is_starved_{false};
};

TEST_F(ReplayServerTest, ACheckThatCannotBeMadeDoesNotEndTheProcess) {
  StarvedDevice device(*device_);
  const auto server = ReplayServer::start(console_, {"127.0.0.1", 0}, "", &device, &code_);
  ASSERT_NE(server, nullptr) << err_.str();
  device.starve();
  server->on_end(nullptr);
  EXPECT_TRUE(stats().is_object()) << "it is still served";
}

TEST_F(ReplayServerTest, LogLinesSayHowSevereTheyAre) {
  testing::internal::CaptureStderr();
  {
    const auto server = ReplayServer::start(console_, {"127.0.0.1", 0}, "", device_.get(), &code_);
    ASSERT_NE(server, nullptr) << err_.str();
    static_cast<void>(report_violation(not_found(Resource::block, 7), "release"));
  }
  static_cast<void>(report_violation(not_found(Resource::block, 8), "release"));
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(logged.starts_with("critical: violation in release: block 7")) << logged;
  EXPECT_EQ(std::ranges::count(logged, '\n'), 1) << "nobody listens any more: " << logged;
}

}  // namespace
}  // namespace kvarena::tools
