#include "health/http/endpoints.hpp"

#include "support/raw_client.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <stdexcept>
#include <string>

namespace kvarena::http {
namespace {

using test::body_of;
using test::get_request;
using test::status_of;

constexpr const char* kText = "text/plain";

EndpointsOptions options(std::string token = "") {
  EndpointsOptions made;
  made.routes["/health"] = [] { return Answer{200, "application/json", "{}\n"}; };
  made.routes["/sick"] = [] { return Answer{503, kText, "sick\n"}; };
  made.routes["/broken"] = []() -> Answer { throw std::runtime_error("broken"); };
  made.routes["/worse"] = []() -> Answer { throw 1; };
  made.token = std::move(token);
  return made;
}

bool has_header(const std::string& response, const std::string& line) {
  return response.substr(0, response.find("\r\n\r\n") + 2).find("\r\n" + line + "\r\n") !=
         std::string::npos;
}

TEST(HttpEndpoints, AnswersAndCloses) {
  Endpoints endpoints(options());
  const std::string response = endpoints.answer(get_request("/health"));
  EXPECT_TRUE(response.starts_with("HTTP/1.1 200 OK\r\n")) << response;
  EXPECT_TRUE(has_header(response, "Content-Type: application/json")) << response;
  EXPECT_TRUE(has_header(response, "Content-Length: 3"));
  EXPECT_TRUE(has_header(response, "Connection: close"));
  EXPECT_TRUE(has_header(response, "Cache-Control: no-store"));
  EXPECT_TRUE(has_header(response, "X-Content-Type-Options: nosniff"));
  EXPECT_EQ(body_of(response), "{}\n");
  EXPECT_EQ(status_of(endpoints.answer(get_request("/sick"))), 503);
  EXPECT_EQ(status_of(endpoints.answer("GET /health HTTP/1.0\r\n\r\n")), 200);
  EXPECT_EQ(status_of(endpoints.answer(get_request("/health?verbose=1#top"))), 200);
}

TEST(HttpEndpoints, HeadHasNoBody) {
  Endpoints endpoints(options());
  const std::string response = endpoints.answer("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(status_of(response), 200);
  EXPECT_TRUE(has_header(response, "Content-Length: 3")) << response;
  EXPECT_EQ(response.find("Accept-Ranges"), std::string::npos);
  EXPECT_EQ(body_of(response), "");
}

TEST(HttpEndpoints, NothingElse) {
  Endpoints endpoints(options());
  for (const char* path : {"/", "/Health", "/health/", "/healthz", "//health", "/health/../health",
                           "/../etc/passwd", "/%2e%2e/etc/passwd", "/health%00", "*"}) {
    EXPECT_EQ(status_of(endpoints.answer(get_request(path))), 404) << path;
  }
  for (const char* method :
       {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PRI"}) {
    const std::string response = endpoints.answer(
        std::string(method) + " /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n");
    EXPECT_EQ(status_of(response), 405) << method;
    EXPECT_TRUE(has_header(response, "Allow: GET, HEAD")) << response;
  }
}

TEST(HttpEndpoints, NoBodies) {
  Endpoints endpoints(options());
  const auto status = [&](std::string_view headers) {
    return status_of(endpoints.answer(get_request("/health", headers)));
  };
  EXPECT_EQ(status("Content-Length: 0\r\n"), 200);
  EXPECT_EQ(status("Content-Length: 1\r\n"), 413);
  EXPECT_EQ(status("Content-Length: 99999999999999999999\r\n"), 413);
  EXPECT_EQ(status("Content-Length: -1\r\n"), 413);
  EXPECT_EQ(status("Transfer-Encoding: chunked\r\n"), 413);
  EXPECT_EQ(status("Content-Type: multipart/form-data; boundary=\r\nContent-Length: 9\r\n"), 413);
  EXPECT_EQ(status("Expect: 100-continue\r\n"), 417);
}

TEST(HttpEndpoints, Malformed) {
  Endpoints endpoints(options());
  const std::string long_line(9000, 'a');
  for (const std::string& head :
       {std::string("\r\n\r\n"), std::string("GET\r\n\r\n"), std::string("GET /health\r\n\r\n"),
        std::string("GET /health HTTP/2.0\r\n\r\n"), std::string("GET /health HTTP/1.1 x\r\n\r\n"),
        std::string("BREW /health HTTP/1.1\r\n\r\n"), std::string("GET /health HTTP/1.1\n\n"),
        std::string("GET /health HTTP/1.1\r\nHost: localhost\n\n"),
        std::string("G\0T /health HTTP/1.1\r\n\r\n", 25), get_request("/a?b?c"),
        get_request("/health", "X: " + long_line + "\r\n"),
        get_request("/health", "Host: localhost\r\n"), std::string("\xff\xfe\r\n\r\n")}) {
    EXPECT_EQ(status_of(endpoints.answer(head)), 400) << head;
  }
  EXPECT_EQ(status_of(endpoints.answer(get_request("/" + long_line))), 414);
  EXPECT_EQ(status_of(endpoints.answer("")), 400);
}

TEST(HttpEndpoints, RangesAreIgnored) {
  Endpoints endpoints(options());
  const std::string many(7000, '-');
  for (const std::string& range : {std::string("bytes=0-0"), std::string("bytes=1-0,5-"),
                                   std::string("bytes=99999999999999999999-"), "bytes=0" + many}) {
    const std::string response =
        endpoints.answer(get_request("/health", "rAnge: " + range + "\r\n"));
    EXPECT_EQ(status_of(response), 200) << range;
    EXPECT_EQ(body_of(response), "{}\n");
  }
}

TEST(HttpEndpoints, Token) {
  Endpoints endpoints(options("0123456789abcdef"));
  const auto status = [&](std::string_view headers) {
    return status_of(endpoints.answer(get_request("/health", headers)));
  };
  EXPECT_EQ(status("Authorization: Bearer 0123456789abcdef\r\n"), 200);
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status("Authorization: Bearer 0123456789abcdeg\r\n"), 401);
  EXPECT_EQ(status("Authorization: Bearer 0123456789abcdef\r\n"
                   "Authorization: Bearer 0123456789abcdef\r\n"),
            401);
  const std::string refused = endpoints.answer(get_request("/health"));
  EXPECT_TRUE(has_header(refused, "WWW-Authenticate: Bearer realm=\"kvarena\"")) << refused;
  // Who has no token does not learn which paths and methods there are.
  EXPECT_EQ(status_of(endpoints.answer(get_request("/nothing"))), 401);
  EXPECT_EQ(status_of(endpoints.answer("POST /health HTTP/1.1\r\n\r\n")), 401);
  // With a token any name will do for a host.
  EXPECT_EQ(status_of(endpoints.answer("GET /health HTTP/1.1\r\nHost: node7:9400\r\n"
                                       "Authorization: Bearer 0123456789abcdef\r\n\r\n")),
            200);
}

TEST(HttpEndpoints, AReboundNameIsRefused) {
  Endpoints endpoints(options());
  const auto status = [&](const std::string& host) {
    return status_of(endpoints.answer("GET /health HTTP/1.1\r\nHost: " + host + "\r\n\r\n"));
  };
  EXPECT_EQ(status("localhost:1"), 200);
  EXPECT_EQ(status("evil.example"), 403);
  EndpointsOptions open = options();
  open.check_host = false;
  Endpoints unchecked(std::move(open));
  EXPECT_EQ(status_of(unchecked.answer("GET /health HTTP/1.1\r\nHost: a.b\r\n\r\n")), 200);
}

TEST(HttpEndpoints, AThrowingRouteIs500AndHarmsNobody) {
  Endpoints endpoints(options());
  for (const char* path : {"/broken", "/worse"}) {
    const std::string response = endpoints.answer(get_request(path));
    EXPECT_EQ(status_of(response), 500) << path;
    EXPECT_EQ(response.find("broken"), std::string::npos) << "what is thrown is nobody's business";
  }
  EXPECT_EQ(status_of(endpoints.answer(get_request("/health"))), 200);
}

TEST(HttpEndpoints, SignalsStayTheEngines) {
  struct sigaction before {};
  struct sigaction after {};
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &before), 0);
  ASSERT_EQ(before.sa_handler, SIG_DFL);
  const Endpoints endpoints(options());
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, SIG_DFL);
}

TEST(HttpRefusal, IsAWholeResponse) {
  for (const int status : {400, 408, 414, 431, 503}) {
    const std::string response = refusal(status);
    EXPECT_EQ(status_of(response), status);
    EXPECT_TRUE(has_header(response, "Connection: close"));
    EXPECT_TRUE(
        has_header(response, "Content-Length: " + std::to_string(body_of(response).size())));
  }
  EXPECT_TRUE(has_header(refusal(503), "Retry-After: 1"));
}

}  // namespace
}  // namespace kvarena::http
