// kvarena monitor: what it shows of a server, and what it says of one that does not answer.

#include "health/http/endpoints.hpp"
#include "health/http/server.hpp"

#include "support/manager_access.hpp"
#include "support/status_matchers.hpp"
#include "support/test_files.hpp"
#include "tools/http_address.hpp"
#include "tools/interrupt.hpp"
#include "tools/monitor/health_client.hpp"
#include "unit/health/sample_report.hpp"
#include "unit/step/step_publisher_fixture.hpp"
#include "unit/tools/child_command.hpp"
#include "unit/tools/command_run.hpp"

#include "health/render/stats_json.hpp"

#include "kvarena/health/health_monitor.hpp"
#include "kvarena/health/health_server.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;

Json sample_stats() { return stats_json(test::sample_report(), test::sample_details()); }

TEST(HttpAddress, AddressesAndUrls) {
  EXPECT_EQ(parse_http_address("127.0.0.1:9400"), (HttpAddress{"127.0.0.1", 9400}));
  EXPECT_EQ(parse_http_address("localhost:0"), (HttpAddress{"localhost", 0}));
  EXPECT_EQ(parse_http_address("[::1]:65535"), (HttpAddress{"::1", 65535}));
  for (const char* wrong : {"", ":", "9400", "host:", ":80", "host:65536", "host:-1", "host:80x",
                            "::1:80", "[::1:80", "host:+1"}) {
    EXPECT_EQ(parse_http_address(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(parse_http_url("http://h:1/"), (HttpAddress{"h", 1}));
  EXPECT_EQ(parse_http_url("h:1"), std::nullopt);
  EXPECT_EQ(parse_http_url("https://h:1"), std::nullopt);
  EXPECT_EQ(parse_http_url("http://h:1/stats"), std::nullopt);
}

/// A server whose /stats answers what a test wants.
class MonitorCommandTest : public testing::Test {
 protected:
  struct Step {
    int status = 200;
    std::string body;
  };
  void serve(int status, std::string body, std::string token = "") {
    serve({{status, std::move(body)}}, std::move(token));
  }
  /// The first request gets the first step's answer, and so on; the last stays.
  void serve(std::vector<Step> steps, std::string token = "") {
    http::EndpointsOptions options;
    options.routes["/stats"] = [this, steps = std::move(steps)] {
      const Step& step = steps[std::min<std::size_t>(asked_++, steps.size() - 1)];
      return http::Answer{step.status, "application/json", step.body};
    };
    options.token = std::move(token);
    endpoints_ = std::make_unique<http::Endpoints>(std::move(options));
    auto listener = http::Listener::bind("127.0.0.1", 0).value();
    url_ = listener.url;
    server_ = std::make_unique<http::Server>(std::move(listener), http::Wakeup::create().value(),
                                             *endpoints_,
                                             http::Limits{.request = std::chrono::minutes(1)});
    ASSERT_TRUE(server_->start());
  }
  /// The next request is the first again.
  void restart() { asked_ = 0; }
  Outcome once() { return run({"monitor", "--url", url_, "--once", "--json", "-"}); }
  void expect_error(const std::string& words) {
    const auto seen = once();
    EXPECT_EQ(seen.code, ExitCode::environment);
    EXPECT_EQ(seen.out, "");
    EXPECT_TRUE(contains(seen.err, words)) << seen.err;
  }

  std::string url_;

 private:
  std::atomic<std::size_t> asked_{0};
  std::unique_ptr<http::Endpoints> endpoints_;
  std::unique_ptr<http::Server> server_;
};

TEST_F(MonitorCommandTest, JsonIsTheWholeAnswer) {
  serve(200, sample_stats().dump());
  const auto seen = once();
  EXPECT_EQ(seen.code, ExitCode::ok) << seen.err;
  EXPECT_EQ(Json::parse(seen.out), sample_stats());
  EXPECT_TRUE(contains(run({"monitor", "--url", url_, "--once"}).out, "pool default  step 41"));
}

TEST_F(MonitorCommandTest, UnhealthyFailsOnce) {
  Json stats = sample_stats();
  stats["health"]["status"] = "unhealthy";
  serve(200, stats.dump());
  EXPECT_EQ(once().code, ExitCode::check_failed);
}

TEST_F(MonitorCommandTest, NobodyListens) {
  url_ = http::Listener::bind("127.0.0.1", 0).value().url;  // which it closes at once
  expect_error("no connection");
}

TEST_F(MonitorCommandTest, AToken) {
  serve(200, sample_stats().dump(), "0123456789abcdef");
  expect_error("401");
  const test::TempFile token("0123456789abcdef\n");
  EXPECT_EQ(run({"monitor", "--url", url_, "--once", "--http-token-file", token.path()}).code,
            ExitCode::ok);
  EXPECT_EQ(run({"monitor", "--url", url_, "--once", "--http-token-file", "/no/such"}).code,
            ExitCode::bad_input);
}

TEST_F(MonitorCommandTest, TooManyConnections) {
  serve(503, "");
  expect_error("503");
}

TEST_F(MonitorCommandTest, NoJson) {
  serve(200, "{\"health\":");
  expect_error("not the JSON of /stats: it is no JSON");
}

TEST_F(MonitorCommandTest, OtherJson) {
  for (const char* other : {"[]", "{}", "{\"health\":{},\"pools\":[],\"devices\":[]}",
                            "{\"health\":1,\"pools\":2,\"devices\":3}"}) {
    serve(200, other);
    expect_error("not the JSON of /stats");
  }
}

TEST_F(MonitorCommandTest, JsonDeeperThanAnyStackHolds) {
  const std::size_t depth = 1'000'000;
  Json stats = sample_stats();
  stats["deep"] = "DEEP";
  std::string text = stats.dump();
  text.replace(text.find("\"DEEP\""), 6, std::string(depth, '[') + std::string(depth, ']'));
  serve(200, text);
  expect_error("not the JSON of /stats: it is nested deeper than 16");
}

TEST_F(MonitorCommandTest, NothingOfAServerIsACommandToTheTerminal) {
  const std::string hostile =
      "x\x1b[2J\r\n\xc2\x9b"
      "31m\x7f";
  Json stats = sample_stats();
  stats["pools"][0]["name"] = hostile;
  stats["devices"][0]["name"] = hostile;
  stats["health"]["reasons"] = {{{"code", hostile}, {"text", hostile}, {"since_secs", 1.0}}};
  serve(200, stats.dump());
  for (const auto& arguments : {std::vector<std::string>{"monitor", "--url", url_, "--once"},
                                {"monitor", "--url", url_, "--once", "--json", "-"}}) {
    const auto seen = run(arguments);
    const std::string shown = seen.out + seen.err;
    EXPECT_TRUE(contains(shown, "[2J")) << shown;
    EXPECT_EQ(shown.find_first_of("\x1b\r\x7f\x9b"), shown.npos) << shown;
  }
  EXPECT_EQ(Json::parse(once().out), stats) << "for programs nothing is lost";
}

/// Counts what is flushed and is full after the last that a test wants: so a monitor ends.
class EndingBuffer : public std::stringbuf {
 public:
  explicit EndingBuffer(int looks) : left_(looks) {}

 protected:
  int sync() override { return --left_ > 0 ? 0 : -1; }

 private:
  int left_;
};

TEST_F(MonitorCommandTest, AServerThatGoesAwayIsALookToo) {
  serve({{200, sample_stats().dump()}, {503, ""}, {200, sample_stats().dump()}});
  for (const bool is_terminal : {false, true}) {
    restart();
    EndingBuffer buffer(3);
    std::ostream out(&buffer);
    std::ostringstream err;
    Console console{out, err};
    console.out_is_terminal = is_terminal;
    const std::vector<const char*> arguments{"kvarena",    "monitor",    "--url",
                                             url_.c_str(), "--interval", "0.05"};
    EXPECT_EQ(run_command_line(static_cast<int>(arguments.size()), arguments.data(), console, {}),
              ExitCode::environment);
    EXPECT_TRUE(contains(err.str(), "standard output could not be written")) << err.str();
    EXPECT_FALSE(contains(err.str(), "503")) << err.str();
    const std::string shown = buffer.str();
    if (is_terminal) {
      EXPECT_TRUE(contains(shown, url_ + ": 503: the server has too many connections")) << shown;
      EXPECT_TRUE(contains(shown, "  as it was last seen:\n" + url_ + "  healthy")) << shown;
    } else {
      EXPECT_TRUE(contains(shown, "Z unreachable reason=\"" + url_ + ": 503")) << shown;
      EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 3) << shown;
      EXPECT_TRUE(contains(shown, " steps/s=0.0 ")) << shown;
    }
  }
}

TEST(MonitorCommand, AccountsThatAreViolatedAreSeen) {
  auto monitor = HealthMonitor::create({.run_thread = false}).value();
  test::PublishedPool pool(12, 0);
  ASSERT_OK(monitor.watch(pool.publisher, "main"));
  test::parts_of(pool.manager).pool.mutable_counts().free = -3;
  pool.publish();
  ASSERT_FALSE(monitor.check_now().healthy);
  const auto server = HealthServer::start(monitor, {.address = "127.0.0.1", .port = 0});
  ASSERT_OK(server);
  const auto seen = run({"monitor", "--url", server->url(), "--once"});
  EXPECT_EQ(seen.code, ExitCode::check_failed) << seen.err;
  EXPECT_TRUE(contains(seen.out, "  accounts_violated for ")) << seen.out;
  EXPECT_TRUE(contains(seen.out, "pool main: free -3 + fenced 0")) << seen.out;
  EXPECT_TRUE(contains(seen.out, "  states add up to -3 of 12")) << seen.out;
}

TEST_F(MonitorCommandTest, IsInterruptedBetweenLooks) {
  serve(200, sample_stats().dump());
  for (const int signal : {SIGINT, SIGTERM}) {
    ChildCommand monitor({"monitor", "--url", url_, "--interval", "86400", "--json", "-"});
    ASSERT_NE(monitor.wait_for("pool=default"), "");
    EXPECT_EQ(monitor.end(signal), 0);
  }
}

TEST(Interrupt, IsCaughtOnce) {
  Interrupt interrupt;
  EXPECT_FALSE(interrupt.wait_for(std::chrono::milliseconds(0)));
  ASSERT_EQ(::raise(SIGINT), 0);
  EXPECT_TRUE(interrupt.wait_for(std::chrono::hours(1)));
  struct sigaction second {};
  ASSERT_EQ(::sigaction(SIGINT, nullptr, &second), 0);
  EXPECT_EQ(second.sa_handler, SIG_DFL) << "a second ends the process";
}

// ---- servers that do not answer -----------------------------------------------------------------

HealthAnswer ask(const http::Listener& listener, std::chrono::milliseconds patience) {
  return HealthClient({"127.0.0.1", listener.port}, "", patience).stats();
}

TEST(HealthClient, AServerThatHangs) {
  // Connections are taken by the system, and nobody reads.
  const auto listener = http::Listener::bind("127.0.0.1", 0).value();
  const HealthAnswer answer = ask(listener, std::chrono::milliseconds(50));
  EXPECT_EQ(answer.happened, "no answer within 0.05 s: the process hangs or is overloaded");
  EXPECT_TRUE(contains(answer.advice, "look at the process")) << answer.advice;
}

TEST(HealthClient, AServerOfAnotherKind) {
  const auto listener = http::Listener::bind("127.0.0.1", 0).value();
  std::thread server([&listener] {
    pollfd waited{listener.socket.number(), POLLIN, 0};
    ::poll(&waited, 1, -1);
    const http::Descriptor client(::accept(listener.socket.number(), nullptr, nullptr));
    static_cast<void>(::send(client.number(), "220 mail\r\n", 10, MSG_NOSIGNAL));
  });
  const HealthAnswer answer = ask(listener, std::chrono::minutes(10));
  server.join();
  EXPECT_TRUE(answer.happened.starts_with("no answer: ")) << answer.happened;
  EXPECT_EQ(answer.advice, "is it a kvarena server?");
}

TEST(MonitorCommand, WrongUsage) {
  EXPECT_EQ(run({"monitor", "--url", "localhost"}).code, ExitCode::usage);
  EXPECT_EQ(run({"monitor", "--url", "https://localhost:1"}).code, ExitCode::usage);
  EXPECT_EQ(run({"monitor", "--url", "http://h:1", "--device", "cpu"}).code, ExitCode::usage);
  EXPECT_EQ(run({"monitor", "--device", "cpu", "--interval", "0"}).code, ExitCode::usage);
}

TEST(MonitorCommand, ADeviceByItsDriver) {
  const auto seen = run({"monitor", "--device", "cpu", "--once", "--json", "-"});
  ASSERT_EQ(seen.code, ExitCode::ok) << seen.err;
  const Json json = Json::parse(seen.out);
  EXPECT_EQ(json["total_bytes"].get<std::uint64_t>(),
            json["used_bytes"].get<std::uint64_t>() + json["free_bytes"].get<std::uint64_t>());
  EXPECT_TRUE(contains(seen.err, "used")) << seen.err;
}

}  // namespace
}  // namespace kvarena::tools
