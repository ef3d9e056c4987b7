// kvarena monitor: what it shows of a server, and what it says of one that does not answer.

#include "health/http/server.hpp"

#include "support/manager_access.hpp"
#include "support/status_matchers.hpp"
#include "support/test_files.hpp"
#include "tools/interrupt.hpp"
#include "tools/monitor/monitor_sources.hpp"
#include "tools/option_values.hpp"
#include "unit/health/sample_report.hpp"
#include "unit/step/step_publisher_fixture.hpp"
#include "unit/tools/child_command.hpp"
#include "unit/tools/command_run.hpp"

#include "health/render/json.hpp"

#include "kvarena/health/health_monitor.hpp"
#include "kvarena/health/health_server.hpp"

#include <gtest/gtest.h>
#include <microhttpd.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
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
  EXPECT_EQ(parse_http_address("127.0.0.1:15858"), (HttpAddress{"127.0.0.1", 15858}));
  EXPECT_EQ(parse_http_address("localhost:0"), (HttpAddress{"localhost", 0}));
  EXPECT_EQ(parse_http_address("[::1]:65535"), (HttpAddress{"::1", 65535}));
  for (const char* wrong : {"", ":", "15858", "host:", ":80", "host:65536", "host:-1", "host:80x",
                            "::1:80", "[::1:80", "host:+1"}) {
    EXPECT_EQ(parse_http_address(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(parse_http_url("http://h:1/"), "http://h:1");
  EXPECT_EQ(parse_http_url("https://h:1"), "https://h:1");
  EXPECT_EQ(parse_http_url("https://h/"), "https://h:443");
  EXPECT_EQ(parse_http_url("https://[::1]"), "https://[::1]:443");
  for (const char* wrong : {"h:1", "http://h", "https://", "http://h:1/stats", "https://h/stats",
                            "ftp://h:1", "HTTP://h:1"}) {
    EXPECT_EQ(parse_http_url(wrong), std::nullopt) << wrong;
  }
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
    http::Endpoints endpoints;
    endpoints.routes["/stats"] = [this, steps = std::move(steps)] {
      const Step& step = steps[std::min<std::size_t>(asked_++, steps.size() - 1)];
      return http::Answer{step.status, "application/json", step.body};
    };
    endpoints.token = std::move(token);
    auto listener = http::Listener::bind("127.0.0.1", 0).value();
    url_ = listener.url;
    server_ = http::Server::start(std::move(listener), std::move(endpoints),
                                  {.request = std::chrono::minutes(1)})
                  .value();
  }
  /// The next request is the first again.
  void restart() { asked_ = 0; }
  Outcome once() { return run({"monitor", "--url", url_, "--once", "--json", "-"}); }
  void expect_error(const std::string& words) {
    const auto seen = once();
    EXPECT_EQ(seen.code, ExitCode::environment);
    EXPECT_FALSE(nlohmann::json::parse(seen.out).at("ok")) << seen.out;
    EXPECT_TRUE(contains(seen.err, words));
  }

  std::string url_;

 private:
  std::atomic<std::size_t> asked_{0};
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
  expect_error("connection refused: the machine is there, and nobody listens on that port");
}

TEST_F(MonitorCommandTest, ANameThatNobodyHas) {
  url_ = "http://no-such-machine.invalid:15858";
  expect_error("the name of the machine is not known");
}

TEST_F(MonitorCommandTest, AToken) {
  serve(200, sample_stats().dump(), "0123456789abcdef");
  expect_error("401");
  const test::TempFile token("0123456789abcdef\n");
  const std::vector<std::string> with_token{"monitor",           "--url",     url_, "--once",
                                            "--http-token-file", token.path()};
  for (const mode_t mode : {0644U, 0604U, 0602U}) {
    ASSERT_EQ(::chmod(token.path().c_str(), mode), 0);
    EXPECT_TRUE(ended(run(with_token), ExitCode::bad_input,
                      {"everybody on this machine can ", "chmod 600 " + token.path()}))
        << mode;
  }
  for (const mode_t mode : {0400U, 0600U, 0640U}) {
    ASSERT_EQ(::chmod(token.path().c_str(), mode), 0);
    EXPECT_EQ(run(with_token).code, ExitCode::ok) << mode;
  }
  EXPECT_EQ(run({"monitor", "--url", url_, "--once", "--http-token-file", "/no/such"}).code,
            ExitCode::bad_input);
}

TEST_F(MonitorCommandTest, TooManyConnections) {
  serve(429, "");
  expect_error("429: the server is overloaded");
}

TEST_F(MonitorCommandTest, EveryRefusalOfOurServerHasItsOwnWords) {
  for (const int status : {408, 431, 500}) {
    serve(status, "");
    const auto seen = once();
    EXPECT_EQ(seen.code, ExitCode::environment);
    EXPECT_TRUE(contains(seen.err, std::to_string(status) + ": the "));
    EXPECT_FALSE(contains(seen.err, "is it a kvarena server"));
  }
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
      "31m\x7f\xe2\x80\xae\xe2\x80\xa8\xef\xbb\xbf";
  Json stats = sample_stats();
  stats["pools"][0]["name"] = hostile;
  stats["devices"][0]["name"] = hostile;
  stats["health"]["reasons"] = {{{"code", hostile}, {"text", hostile}, {"since_secs", 1.0}}};
  serve(200, stats.dump());
  for (const auto& arguments : {std::vector<std::string>{"monitor", "--url", url_, "--once"},
                                {"monitor", "--url", url_, "--once", "--json", "-"}}) {
    const auto seen = run(arguments);
    const std::string shown = seen.out + seen.err;
    EXPECT_TRUE(contains(shown, "[2J"));
    EXPECT_EQ(shown.find_first_of("\x1b\r\x7f\x9b\xe2\xef"), shown.npos) << shown;
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
  serve({{200, sample_stats().dump()}, {429, ""}, {200, sample_stats().dump()}});
  for (const bool is_terminal : {false, true}) {
    restart();
    EndingBuffer buffer(3);
    std::ostream out(&buffer);
    std::ostringstream err;
    Console console{out, err};
    console.out_is_terminal = is_terminal;
    EXPECT_EQ(run_on(console, {"monitor", "--url", url_, "--interval", "0.05"}),
              ExitCode::environment);
    EXPECT_TRUE(contains(err.str(), "standard output could not be written"));
    EXPECT_FALSE(contains(err.str(), "429"));
    const std::string shown = buffer.str();
    if (is_terminal) {
      EXPECT_TRUE(
          contains_all(shown, {url_ + ": 429: the server is overloaded by too many connections",
                               "  the last answer came at 20", " s ago:\n" + url_ + "  healthy"}));
    } else {
      EXPECT_TRUE(contains_all(shown, {" reason=\"" + url_ + ": 429", "Z unreachable since=20"}));
      EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 3) << shown;
      EXPECT_TRUE(contains(shown, " steps/s=0.0 "));
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
  EXPECT_TRUE(contains_all(seen.out, {"  accounts_violated for ", "pool main: free -3 + fenced 0",
                                      "  states add up to -3 of 12"}));
}

TEST_F(MonitorCommandTest, IsInterruptedBetweenLooks) {
  serve(200, sample_stats().dump());
  for (const int signal : {SIGINT, SIGTERM}) {
    ChildCommand monitor({"monitor", "--url", url_, "--interval", "86400", "--json", "-"});
    ASSERT_NE(monitor.wait_for("pool=default"), "");
    EXPECT_EQ(monitor.end(signal), 0);
  }
}

void be_asked_twice(int signal) {
  Interrupt interrupt;
  ::raise(signal);
  std::this_thread::sleep_for(std::chrono::milliseconds(550));
  ::raise(signal);
}

TEST(Interrupt, IsCaughtOnce) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Interrupt interrupt;
    EXPECT_FALSE(interrupt.wait_for(std::chrono::milliseconds(0)));
    ASSERT_EQ(::raise(signal), 0);
    EXPECT_TRUE(interrupt.wait_for(std::chrono::hours(1)));
    EXPECT_EQ(Interrupt::hung_up(), signal == SIGHUP);
    ASSERT_EQ(::raise(signal), 0) << "`timeout` sends one to the command and one to its group";
    EXPECT_EXIT(be_asked_twice(signal), testing::KilledBySignal(signal), "");
  }
}

TEST(Interrupt, AHangUpThatIsIgnoredStaysIgnored) {
  ASSERT_NE(::signal(SIGHUP, SIG_IGN), SIG_ERR);
  {
    Interrupt interrupt;
    ASSERT_EQ(::raise(SIGHUP), 0);
    EXPECT_FALSE(interrupt.came());
  }
  EXPECT_EQ(::signal(SIGHUP, SIG_DFL), SIG_IGN);
}

// ---- servers that do not answer -----------------------------------------------------------------

HealthAnswer ask(const http::Listener& listener, std::chrono::milliseconds limit) {
  return fetch_stats({.url = listener.url, .limit = limit});
}

/// What a server does with its one client.
template <class Serve>
std::thread serve_one(const http::Listener& listener, Serve serve) {
  return std::thread([&listener, serve] {
    pollfd waited{listener.socket.number(), POLLIN, 0};
    ::poll(&waited, 1, -1);
    const http::Descriptor client(::accept(listener.socket.number(), nullptr, nullptr));
    serve(client.number());
  });
}

bool says(int socket, std::string_view bytes) {
  return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0;
}

TEST(HealthClient, AServerThatHangs) {
  // Connections are taken by the system, and nobody reads.
  const auto listener = http::Listener::bind("127.0.0.1", 0).value();
  const HealthAnswer answer = ask(listener, std::chrono::milliseconds(50));
  EXPECT_EQ(answer.happened, "no answer within 0.05 s: the process hangs or is overloaded");
  EXPECT_TRUE(contains(answer.advice, "look at the process"));
}

TEST(HealthClient, AServerThatDripsHasOneLimitForItsWholeAnswer) {
  const auto listener = http::Listener::bind("127.0.0.1", 0).value();
  for (const std::string_view begin : {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\n"}) {
    std::thread server = serve_one(listener, [begin](int client) {
      bool listens = begin.empty() || says(client, begin);
      while (listens) {
        listens = says(client, "X");
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    const auto before = std::chrono::steady_clock::now();
    const HealthAnswer answer = ask(listener, std::chrono::milliseconds(200));
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
    server.join();
    EXPECT_FALSE(answer.is_ok());
    EXPECT_TRUE(contains(answer.happened, "0.2 s") || contains(answer.happened, "no answer: "))
        << answer.happened;
  }
}

TEST(HealthClient, HeadersWithoutEnd) {
  const auto listener = http::Listener::bind("127.0.0.1", 0).value();
  for (const std::string_view more : {"X: y\r\n", "XXXXXXXX"}) {
    std::thread server = serve_one(listener, [more](int client) {
      std::string part = more == "XXXXXXXX" ? "X: " : "";
      for (int n = 0; n < 1000; ++n) part += more;
      bool listens = says(client, "HTTP/1.1 200 OK\r\n");
      while (listens) listens = says(client, part);
    });
    const HealthAnswer answer = ask(listener, std::chrono::minutes(10));
    server.join();
    EXPECT_TRUE(contains(answer.happened, "too large")) << answer.happened;
  }
}

TEST(HealthClient, AServerOfAnotherKind) {
  const auto listener = http::Listener::bind("127.0.0.1", 0).value();
  std::thread server = serve_one(listener, [](int client) { says(client, "220 mail\r\n"); });
  const HealthAnswer answer = ask(listener, std::chrono::minutes(10));
  server.join();
  EXPECT_TRUE(answer.happened.starts_with("no answer: ")) << answer.happened;
  EXPECT_TRUE(answer.advice.starts_with("is it a kvarena server")) << answer.advice;
}

/// A server behind TLS with a certificate of its own for 127.0.0.1, as a proxy has it.
class TlsTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string make =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        "-days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1 -keyout '" +
        key_.path() + "' -out '" + certificate_.path() + "' 2> /dev/null";
    if (std::system(make.c_str()) != 0) GTEST_SKIP() << "there is no openssl command";
    static const std::string body = sample_stats().dump();
    const auto answer = [](void*, MHD_Connection* connection, const char*, const char*, const char*,
                           const char*, std::size_t*, void**) {
      MHD_Response* response = MHD_create_response_from_buffer(
          body.size(), const_cast<char*>(body.data()), MHD_RESPMEM_PERSISTENT);
      const MHD_Result queued = MHD_queue_response(connection, 200, response);
      MHD_destroy_response(response);
      return queued;
    };
    const std::string key = key_.content();
    const std::string certificate = certificate_.content();
    server_ = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_TLS, 0, nullptr, nullptr,
                               answer, nullptr, MHD_OPTION_HTTPS_MEM_KEY, key.c_str(),
                               MHD_OPTION_HTTPS_MEM_CERT, certificate.c_str(), MHD_OPTION_END);
    ASSERT_NE(server_, nullptr);
    address_ = "127.0.0.1:" +
               std::to_string(MHD_get_daemon_info(server_, MHD_DAEMON_INFO_BIND_PORT)->port);
  }
  void TearDown() override {
    if (server_ != nullptr) MHD_stop_daemon(server_);
  }
  Outcome once(const std::string& url, const std::string& ca_file) {
    std::vector<std::string> arguments{"monitor", "--url", url, "--once"};
    if (!ca_file.empty()) arguments.insert(arguments.end(), {"--http-ca-file", ca_file});
    return run(arguments);
  }

  test::TempFile key_{""};
  test::TempFile certificate_{""};
  std::string address_;

 private:
  MHD_Daemon* server_ = nullptr;
};

TEST_F(TlsTest, ATrustedCertificateAndNoOther) {
  const auto seen = once("https://" + address_, certificate_.path());
  EXPECT_EQ(seen.code, ExitCode::ok) << seen.err;
  EXPECT_TRUE(contains(seen.out, "pool default  step 41"));
  const auto expect_refused = [&](const std::string& url, const std::string& ca_file,
                                  const std::string& words) {
    EXPECT_TRUE(ended(once(url, ca_file), ExitCode::environment, {words}));
  };
  expect_refused("https://" + address_, "", "the server's certificate is not trusted");
  expect_refused("https://" + address_, "/no/such", "--http-ca-file cannot be read");
  expect_refused("http://" + address_, "", "no answer: ");
}

TEST_F(MonitorCommandTest, TlsWhereThereIsNone) {
  serve(200, sample_stats().dump());
  url_ = "https" + url_.substr(4);
  expect_error("no TLS connection: the server speaks another protocol");
}

TEST(MonitorCommand, WrongUsage) {
  EXPECT_EQ(run_line("monitor --url localhost").code, ExitCode::usage);
  EXPECT_EQ(run_line("monitor --url ftp://localhost:1").code, ExitCode::usage);
  EXPECT_EQ(run_line("monitor --url http://h:1 --device cpu").code, ExitCode::usage);
  EXPECT_EQ(run_line("monitor --device cpu --interval 0").code, ExitCode::usage);
}

TEST(MonitorCommand, ADeviceByItsDriver) {
  const auto seen = run_line("monitor --device cpu --once --json -");
  ASSERT_EQ(seen.code, ExitCode::ok) << seen.err;
  const Json json = Json::parse(seen.out);
  EXPECT_EQ(json["total_bytes"].get<std::uint64_t>(),
            json["used_bytes"].get<std::uint64_t>() + json["free_bytes"].get<std::uint64_t>());
  EXPECT_TRUE(contains(seen.err, "used"));
}

}  // namespace
}  // namespace kvarena::tools
