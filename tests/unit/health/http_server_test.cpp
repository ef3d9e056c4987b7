// Clients that are slow, many or hostile, and the clients beside them.

#include "health/http/server.hpp"

#include "support/process_memory.hpp"
#include "support/raw_client.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace kvarena::http {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using test::ask;
using test::get_request;
using test::RawClient;
using test::status_of;

/// Nothing that should succeed meets this.
constexpr milliseconds kGenerous{60'000};
/// More than the kernel takes for a client that does not read.
constexpr std::size_t kLargeBytes = 32 << 20;

std::int64_t num_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

/// A server with one small and one large answer.
class HttpServer : public testing::Test {
 protected:
  void SetUp() override { descriptors_ = test::open_descriptors(); }
  void TearDown() override {
    stop();
    EXPECT_EQ(test::open_descriptors(), descriptors_) << "descriptors leak";
  }
  void start(const Limits& limits) {
    auto listener = Listener::bind("127.0.0.1", 0).value();
    port_ = listener.port;
    Endpoints endpoints;
    endpoints.routes["/small"] = [this] {
      ++answered_;
      return Answer{.body = "small\n"};
    };
    endpoints.routes["/large"] = [] { return Answer{.body = std::string(kLargeBytes, 'x')}; };
    server_ = Server::start(std::move(listener), std::move(endpoints), limits).value();
  }
  void stop() { server_.reset(); }
  int status(std::string_view path) { return status_of(ask(port_, get_request(path))); }
  /// Clients that have sent `bytes` each and no more.
  std::vector<RawClient> clients(int count, std::string_view bytes) {
    std::vector<RawClient> all;
    for (int n = 0; n < count; ++n) {
      all.emplace_back(port_);
      all.back().send(bytes);
    }
    return all;
  }

  std::uint16_t port_ = 0;
  std::atomic<int> answered_{0};

 private:
  std::int64_t descriptors_ = 0;
  std::unique_ptr<Server> server_;
};

TEST_F(HttpServer, AnswersWhole) {
  start({.request = kGenerous});
  for (int n = 0; n < 50; ++n) EXPECT_EQ(status("/small"), 200);
  EXPECT_EQ(answered_, 50);
  EXPECT_EQ(test::body_of(ask(port_, get_request("/large"))).size(), kLargeBytes);
}

TEST_F(HttpServer, RequestsByteByByteAndWithMoreBehind) {
  start({.request = kGenerous});
  RawClient pieces(port_);
  for (const char c : get_request("/small")) ASSERT_TRUE(pieces.send(std::string_view(&c, 1)));
  EXPECT_EQ(status_of(pieces.receive_all()), 200);
  // Pipelined requests are not answered.
  const std::string response = ask(port_, get_request("/small") + get_request("/small"));
  EXPECT_EQ(status_of(response), 200);
  EXPECT_EQ(answered_, 2);
}

TEST_F(HttpServer, OversizedRequests) {
  start({.max_request_bytes = 512, .request = kGenerous});
  const auto with_headers_of = [&](std::size_t bytes) {
    const std::string bare = get_request("/small", "X: \r\n");
    return get_request("/small", "X: " + std::string(bytes - bare.size(), 'a') + "\r\n");
  };
  EXPECT_EQ(status_of(ask(port_, with_headers_of(512))), 200);
  EXPECT_EQ(status_of(ask(port_, with_headers_of(513))), 431);
  std::string many = "GET /small HTTP/1.1\r\n";
  for (int n = 0; n < 2000; ++n) many += "A: b\r\n";
  // The server closes in the middle of these, so the answer may be lost.
  for (const std::string& request : {with_headers_of(100'000), std::string(100'000, 'G'), many,
                                     "GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n"}) {
    const int code = status_of(ask(port_, request));
    EXPECT_TRUE(code == 431 || code == 414 || code == 400 || code == 0) << code;
  }
  EXPECT_EQ(answered_, 1);
}

TEST_F(HttpServer, SilentAndSlowClientsAreTold) {
  start({.max_request_bytes = 1 << 20, .request = milliseconds(100)});
  auto slow = clients(1, "");
  slow.push_back(std::move(clients(1, "GET /small HTTP/1.1\r\nX: ")[0]));
  RawClient trickling(port_);
  std::thread trickle([&] {
    while (trickling.send("a")) std::this_thread::sleep_for(milliseconds(1));
  });
  for (RawClient& client : slow) EXPECT_EQ(status_of(client.receive_all()), 408);
  // Bytes keep coming, so the connection may be reset behind the answer, but it ends.
  EXPECT_EQ(status_of(trickling.receive_all()), 408);
  trickle.join();
}

TEST_F(HttpServer, HalfOpenAndGoneClients) {
  start({.request = milliseconds(300)});
  RawClient half(port_);
  half.send("GET /small HTTP/1.1\r\n");
  half.finish_sending();
  EXPECT_NE(status_of(half.receive_all()), 200);
  RawClient whole(port_);
  whole.send(get_request("/small"));
  whole.finish_sending();
  EXPECT_EQ(status_of(whole.receive_all()), 200);
  { const RawClient gone(port_); }
  EXPECT_EQ(status("/small"), 200);
}

TEST_F(HttpServer, AClientThatDoesNotReadIsCutOff) {
  start({.request = milliseconds(200)});
  RawClient client(port_);
  client.send(get_request("/large"));
  ASSERT_TRUE(client.await_close());
  // Only what the kernel buffers is there when the time is over.
  EXPECT_LT(client.receive_all().size(), kLargeBytes);
}

TEST_F(HttpServer, SlowClientsKeepTheirPlacesBesideQuickOnes) {
  start({.max_connections = 16, .request = kGenerous});
  auto slow = clients(15, "GET /sm");
  for (int n = 0; n < 20; ++n) EXPECT_EQ(status("/small"), 200);
  for (RawClient& client : slow) {
    client.send("all HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(status_of(client.receive_all()), 200);
  }
}

TEST_F(HttpServer, ThreeHundredSlowClientsDoNotMakeItIll) {
  start({.max_connections = 32, .request = kGenerous});
  const std::int64_t threads = num_threads();
  auto slow = clients(300, "GET /small HTTP/1.1\r\nX: ");
  const auto began = Clock::now();
  for (int n = 0; n < 20; ++n) {
    for (RawClient& client : slow) client.send("a");
    EXPECT_EQ(status("/small"), 200) << n;
  }
  EXPECT_LT(Clock::now() - began, kGenerous / 4);
  EXPECT_EQ(num_threads(), threads);
  int overloaded = 0;
  for (std::size_t n = 0; n < 200; ++n) {
    const int code = status_of(slow[n].receive_all());
    overloaded += code == 429 ? 1 : 0;
    EXPECT_NE(code, 503) << "the code of illness";
  }
  EXPECT_GT(overloaded, 0) << "they are told why";
}

TEST_F(HttpServer, ClientsThatDoNotReadMakeRoomToo) {
  start({.max_connections = 2, .request = kGenerous});
  auto lazy = clients(6, get_request("/large"));
  for (int n = 0; n < 10; ++n) EXPECT_EQ(status("/small"), 200);
}

TEST_F(HttpServer, WantOfDescriptorsPasses) {
  start({.request = kGenerous});
  ASSERT_EQ(status("/small"), 200);
  RawClient early(port_);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  // Room for this client's socket and none for the server's.
  RawClient waiting(port_);
  const rlimit low{4, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  early.send("G");
  std::this_thread::sleep_for(milliseconds(120));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  waiting.send(get_request("/small"));
  EXPECT_EQ(status_of(waiting.receive_all()), 200);
  EXPECT_EQ(status("/small"), 200);
}

TEST_F(HttpServer, ManyThreadsAtOnce) {
  start({.max_connections = 64, .request = kGenerous});
  const int each = test::kSanitized ? 50 : 300;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int n = 0; n < each; ++n) wrong += status("/small") == 200 ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(answered_, 8 * each);
}

TEST_F(HttpServer, GarbageOpensAndClosesLeaveItWell) {
  start({.max_connections = 8, .max_request_bytes = 512, .request = milliseconds(500)});
  std::mt19937_64 random(1);
  const std::string request = get_request("/small");
  for (int n = 0; n < 400; ++n) {
    RawClient client(port_);
    std::string bytes = n % 4 == 0 ? request.substr(0, random() % request.size()) : "";
    for (std::uint64_t left = random() % 64; n % 4 == 1 && left > 0; --left) {
      bytes += static_cast<char>(random());
    }
    client.send(bytes);
    if (n % 8 == 1) client.send("\r\n\r\n"), static_cast<void>(client.receive_all());
  }
  EXPECT_EQ(status("/small"), 200);
}

TEST_F(HttpServer, StopsPromptlyWithHangingClients) {
  start({.max_connections = 64, .request = kGenerous});
  auto hanging = clients(10, "GET /sm");
  for (RawClient& client : clients(10, get_request("/large"))) hanging.push_back(std::move(client));
  EXPECT_EQ(status("/small"), 200);
  const auto before = Clock::now();
  stop();
  EXPECT_LT(Clock::now() - before, kGenerous / 2) << "waited for a client";
  EXPECT_FALSE(RawClient(port_).connected());
  for (RawClient& client : hanging) EXPECT_NE(client.receive_all(), "<timeout>");
  EXPECT_OK(Listener::bind("127.0.0.1", port_)) << "the port is free again at once";
}

TEST(HttpListener, LoopbackOrNot) {
  for (const char* address : {"localhost", "127.0.0.1", "127.4.5.6", "::1"}) {
    EXPECT_EQ(is_loopback(address), true) << address;
  }
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "::ffff:127.0.0.1"}) {
    EXPECT_EQ(is_loopback(address), false) << address;
  }
  for (const char* address : {"", "example.org", "127.0.0.1:80", "1.2.3.4.5", "http://127.0.0.1"}) {
    EXPECT_EQ(is_loopback(address), std::nullopt) << address;
  }
}

TEST(HttpListener, BindsOnce) {
  const auto first = Listener::bind("127.0.0.1", 0);
  ASSERT_OK(first);
  EXPECT_EQ(first->url, "http://127.0.0.1:" + std::to_string(first->port));
  const Status taken = Listener::bind("localhost", first->port).status();
  EXPECT_EQ(taken.code, StatusCode::io_error);
  EXPECT_EQ(taken.resource, Resource::address);
  EXPECT_EQ(taken.native, EADDRINUSE);
  EXPECT_EQ(Listener::bind("example.org", 0).status().code, StatusCode::invalid_argument);
}

}  // namespace
}  // namespace kvarena::http
