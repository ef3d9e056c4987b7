// Which request gets which answer, byte by byte.

#include "health/http/endpoints.hpp"

#include "support/raw_client.hpp"
#include "support/text_matchers.hpp"
#include "unit/health/http_exchange.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::http {
namespace {

using test::body_of;
using test::get_request;
using test::status_of;

constexpr const char* kToken = "0123456789abcdef";

std::unique_ptr<Connections> server(std::string token = "", bool check_host = true) {
  Endpoints made;
  made.routes["/health"] = [] { return Answer{200, "application/json", "{}\n"}; };
  made.routes["/sick"] = [] { return Answer{503, "text/plain", "sick\n"}; };
  made.routes["/broken"] = []() -> Answer { throw std::runtime_error("broken"); };
  made.routes["/worse"] = []() -> Answer { throw 1; };
  made.token = std::move(token);
  made.check_host = check_host;
  return Connections::create(std::move(made), {.max_request_bytes = 8192}).value();
}

bool has_header(const std::string& response, const std::string& line) {
  return response.substr(0, response.find("\r\n\r\n") + 2).find("\r\n" + line + "\r\n") !=
         std::string::npos;
}

TEST(HttpEndpoints, AnswersAndCloses) {
  const auto connections = server();
  const std::string response = test::exchange(*connections, get_request("/health"));
  EXPECT_TRUE(response.starts_with("HTTP/1.1 200 OK\r\n")) << response;
  for (const char* line :
       {"Content-Type: application/json", "Content-Length: 3", "Connection: close",
        "Cache-Control: no-store", "X-Content-Type-Options: nosniff"}) {
    EXPECT_TRUE(has_header(response, line)) << line << " in " << response;
  }
  EXPECT_EQ(body_of(response), "{}\n");
  const std::string head =
      test::exchange(*connections, "HEAD /health HTTP/1.1\r\nHost: ::1\r\n\r\n");
  EXPECT_EQ(status_of(head), 403) << "IPv6 needs brackets";
  const std::string bare = test::exchange(*connections, "HEAD /health HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(status_of(bare) == 200 && has_header(bare, "Content-Length: 3")) << bare;
  EXPECT_EQ(body_of(bare), "");
}

/// A request and the status that it gets.
using Exchange = std::pair<std::string, int>;

std::string with(const std::string& headers) { return get_request("/health", headers); }
std::string method(const std::string& name) {
  return name + " /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody";
}

void expect_statuses(Connections& connections, const std::vector<Exchange>& exchanges) {
  for (const auto& [request, status] : exchanges) {
    const std::string response = test::exchange(connections, request);
    EXPECT_EQ(status_of(response), status) << request << "\n" << response;
    EXPECT_TRUE(test::is_one_response(response)) << request << "\n" << response;
  }
}

TEST(HttpEndpoints, Paths) {
  std::vector<Exchange> exchanges{{get_request("/sick"), 503},
                                  {get_request("/health?verbose=1#top"), 200},
                                  {get_request("/health?a?b&&=%%%"), 200}};
  for (const char* path :
       {"/", "/Health", "/health/", "/healthz", "//health", "/health/../health", "/../etc/passwd",
        "/%2e%2e/etc/passwd", "/health%00", "/h%65alth", "*"}) {
    exchanges.emplace_back(get_request(path), 404);
  }
  expect_statuses(*server(), exchanges);
}

TEST(HttpEndpoints, AnAbsolutePathNamesItsHost) {
  const auto of = [](const std::string& uri) {
    return "GET " + uri + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  };
  expect_statuses(*server(), {{of("http://127.0.0.1/health"), 200},
                              {of("HTTP://[::1]:15858/health?x"), 200},
                              {of("http://localhost"), 404},
                              {of("http://localhost/health/"), 404},
                              {of("http://example.org/health"), 403},
                              {of("http://localhost@example.org/health"), 403},
                              {of("http:///health"), 403},
                              {of("https://localhost/health"), 404},
                              {"GET http://example.org/health HTTP/1.0\r\n\r\n", 403},
                              {"GET http://localhost/health HTTP/1.1\r\n\r\n", 400}});
}

TEST(HttpEndpoints, ANulByteDoesNotEndAPath) {
  const auto connections = server();
  for (const std::string& path : {std::string("/health\0", 8), std::string("/health\0/x", 10),
                                  std::string("/health?a\0", 10)}) {
    const int status = status_of(test::exchange(*connections, get_request(path)));
    EXPECT_TRUE(status == 400 || status == 0) << status;
  }
}

TEST(HttpEndpoints, MethodsAndBodies) {
  std::vector<Exchange> exchanges{
      {with("Content-Length: 0\r\n"), 200},
      {with("Content-Length: 1\r\n"), 413},
      {with("Content-Length: 99999999999999999999\r\n"), 413},
      {with("Content-Length: -1\r\n"), 400},
      {with("Content-Length: \r\n"), 400},
      {with("Content-Length: 1x\r\n"), 400},
      {with("Content-Length : 4\r\n"), 400},
      {with("Transfer-Encoding : chunked\r\n"), 400},
      {with("Cookie: " + std::string(7000, ';') + "\r\n"), 200},
      {with("Content-Length: 1\r\nContent-Length: 0\r\n"), 413},
      {with("Transfer-Encoding: chunked\r\n"), 413},
      {with("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n"), 413},
      {with("Content-Type: multipart/form-data; boundary=\r\nContent-Length: 9\r\n"), 413},
      {with("Expect: 100-continue\r\nContent-Length: 9\r\n"), 413},
      {with("Range: bytes=0-0\r\n"), 200},
      {with("Range: bytes=0" + std::string(7000, '-') + "\r\n"), 200}};
  for (const char* name :
       {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PRI", "BREW", "get"}) {
    exchanges.emplace_back(method(name), 405);
  }
  const auto connections = server();
  expect_statuses(*connections, exchanges);
  EXPECT_TRUE(has_header(test::exchange(*connections, method("POST")), "Allow: GET, HEAD"));
}

TEST(HttpEndpoints, MalformedIsRefusedOrCutOff) {
  const auto connections = server();
  for (const std::string& head :
       {std::string("GET\r\n\r\n"), std::string("GET /health\r\n\r\n"),
        std::string("GET /health HTTP/2.0\r\n\r\n"), std::string("GET /health HTTP/1.1\r\n\r\n"),
        std::string("GET /health HTTP/1.1 x\r\n\r\n"), std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n"),
        std::string("G\0T /health HTTP/1.1\r\n\r\n", 25), with("Host: localhost\r\n"),
        with("no colon\r\n"), std::string("\xff\xfe\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01"), std::string("\r\n\r\n"),
        std::string("GET /health HTTP/1.1\r\nHost: local")}) {
    const std::string response = test::exchange(*connections, head);
    const int status = status_of(response);
    EXPECT_TRUE(status == 400 || status == 505 || status == 0) << status << " of " << head;
    EXPECT_TRUE(test::is_one_response(response)) << head << "\n" << response;
  }
  expect_statuses(*connections, {{"GET /health HTTP/1.1\r\n\r\n", 400},
                                 {"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n", 400},
                                 {"GET /health HTTP/1.1\r\n: localhost\r\n\r\n", 400}});
  EXPECT_EQ(status_of(test::exchange(*connections, with("Host: localhost\r\n"))), 400);
  EXPECT_EQ(test::exchange(*connections, ""), "");
}

TEST(HttpEndpoints, ClientsAdoptedTogetherKeepTheirPlaces) {
  const auto connections = server();
  const int slow = test::begin_exchange(*connections, "GET /hea");
  const int gone = test::begin_exchange(*connections, "");
  const int quick = test::begin_exchange(*connections, get_request("/health"));
  ::shutdown(gone, SHUT_RDWR);
  test::turn(*connections);
  EXPECT_EQ(connections->size(), 1U) << "the slow one stays";
  EXPECT_EQ(status_of(test::end_exchange(quick)), 200);
  EXPECT_EQ(test::end_exchange(gone), "");
  // Has the number of one that was closed.
  const int next = test::begin_exchange(*connections, get_request("/sick"));
  ASSERT_EQ(::send(slow, "lth HTTP/1.0\r\n\r\n", 16, MSG_NOSIGNAL), 16);
  test::turn(*connections);
  EXPECT_EQ(connections->size(), 0U);
  EXPECT_EQ(status_of(test::end_exchange(slow)), 200);
  EXPECT_EQ(status_of(test::end_exchange(next)), 503);
}

TEST(HttpEndpoints, AToken) {
  const std::string right = std::string("Authorization: Bearer ") + kToken + "\r\n";
  const auto connections = server(kToken);
  expect_statuses(*connections,
                  {{with(right), 200},
                   {with("aUTHORIZATION: bEARER 0123456789abcdef\r\n"), 200},
                   {with("Authorization: Bearer 0123456789abcdef \r\n"), 200},
                   {with(""), 401},
                   {with("Authorization: Bearer 0123456789abcdeg\r\n"), 401},
                   {with("Authorization: Bearer 0123456789abcdef0\r\n"), 401},
                   {with("Authorization: Basic 0123456789abcdef\r\n"), 401},
                   {with(right + right), 401},
                   {get_request("/nothing"), 401},
                   {method("POST"), 401},
                   {"GET /health HTTP/1.1\r\nHost: node7:80\r\n" + right + "\r\n", 200}});
  const std::string response = test::exchange(*connections, with(""));
  EXPECT_TRUE(has_header(response, "WWW-Authenticate: Bearer realm=\"kvarena\"")) << response;
}

TEST(HttpEndpoints, WithoutATokenTheHostIsThisMachine) {
  const auto of_host = [](const std::string& host) {
    return "GET /health HTTP/1.1\r\nHost: " + host + "\r\n\r\n";
  };
  const auto connections = server();
  for (const char* host :
       {"localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:15858", "127.0.0.1 ", "127.255.0.3",
        "[::1]", "[::1]:15858", "\t localhost:80 \t"}) {
    expect_statuses(*connections, {{of_host(host), 200}});
  }
  for (const char* host :
       {"", "example.org", "localhost.example.org", "127.0.0.1.example.org", "128.0.0.1",
        "[::2]:80", "::1", "127.1", "[::1", "0.0.0.0", "localhost@example.org", "localhost:abc",
        "localhost:80:80", "[::1]:x", "127.0.0.1:-1", "local host"}) {
    expect_statuses(*connections, {{of_host(host), 403}});
  }
  EXPECT_HAS(test::exchange(*connections, of_host("example.org")), "reverse proxy");
  EXPECT_EQ(status_of(test::exchange(*server("", false), of_host("example.org"))), 200);
}

TEST(HttpEndpoints, WhatIsThrownIsNobodysBusiness) {
  const auto connections = server();
  for (const char* path : {"/broken", "/worse"}) {
    const std::string response = test::exchange(*connections, get_request(path));
    EXPECT_EQ(status_of(response), 500) << path;
    EXPECT_EQ(response.find("broken"), std::string::npos) << response;
  }
  EXPECT_EQ(status_of(test::exchange(*connections, with(""))), 200);
}

TEST(HttpEndpoints, SignalsStayTheEngines) {
  struct sigaction after {};
  const auto connections = server();
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, SIG_DFL);
}

TEST(BearerToken, LengthAndCharacters) {
  for (const std::string& token :
       {std::string(kToken), std::string(256, 'x'), std::string("AZaz09-._~+/====")}) {
    EXPECT_TRUE(is_valid_token(token)) << token;
  }
  for (const std::string& token :
       {std::string(), std::string("fifteen-letters"), std::string(257, 'x'),
        std::string("with a space in it"), std::string("abcdefghijklmno%41"),
        std::string("abcdefghijklmnop\n")}) {
    EXPECT_FALSE(is_valid_token(token)) << token;
  }
  EXPECT_FALSE(carries_token(std::string_view("Bearer 0123456789abcdef\0", 24), kToken));
}

}  // namespace
}  // namespace kvarena::http
