// kvarena monitor: what it shows of a server, and what it says of one that does not answer.

#include "health/http/endpoints.hpp"
#include "health/http/server.hpp"

#include "support/test_files.hpp"
#include "tools/http_address.hpp"
#include "unit/health/sample_report.hpp"
#include "unit/tools/command_run.hpp"

#include "health/render/stats_json.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>

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
  void serve(int status, std::string body, std::string token = "") {
    http::EndpointsOptions options;
    options.routes["/stats"] = [status, body] {
      return http::Answer{status, "application/json", body};
    };
    options.token = std::move(token);
    endpoints_ = std::make_unique<http::Endpoints>(std::move(options));
    auto listener = http::Listener::bind("127.0.0.1", 0).value();
    url_ = listener.url;
    server_ = std::make_unique<http::Server>(std::move(listener), http::Wakeup::create().value(),
                                             *endpoints_, http::Limits{});
    ASSERT_TRUE(server_->start());
  }
  Outcome once() { return run({"monitor", "--url", url_, "--once", "--json", "-"}); }
  void expect_error(const std::string& words) {
    const auto seen = once();
    EXPECT_EQ(seen.code, ExitCode::environment);
    EXPECT_EQ(seen.out, "");
    EXPECT_TRUE(contains(seen.err, words)) << seen.err;
  }

  std::string url_;

 private:
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
  expect_error("not the JSON of /stats");
}

TEST_F(MonitorCommandTest, OtherJson) {
  for (const char* other : {"[]", "{}", "{\"health\":{},\"pools\":[],\"devices\":[]}",
                            "{\"health\":1,\"pools\":2,\"devices\":3}"}) {
    serve(200, other);
    expect_error("not the JSON of /stats");
  }
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
