#include "health/http/access.hpp"
#include "health/http/connection.hpp"
#include "health/http/listener.hpp"

#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvarena::http {
namespace {

constexpr std::string_view kToken = "abcdefghijklmnop";

TEST(BearerToken, LengthAndCharacters) {
  EXPECT_TRUE(is_valid_token(kToken));
  EXPECT_TRUE(is_valid_token(std::string(256, 'x')));
  EXPECT_TRUE(is_valid_token("AZaz09-._~+/===="));
  EXPECT_FALSE(is_valid_token(""));
  EXPECT_FALSE(is_valid_token("fifteen-letters"));
  EXPECT_FALSE(is_valid_token(std::string(257, 'x')));
  EXPECT_FALSE(is_valid_token("with a space in it"));
  EXPECT_FALSE(is_valid_token("abcdefghijklmno%41"));
  EXPECT_FALSE(is_valid_token("abcdefghijklmnop\n"));
}

TEST(BearerToken, OnlyTheTokenItself) {
  EXPECT_TRUE(carries_token("Bearer abcdefghijklmnop", kToken));
  EXPECT_TRUE(carries_token("bearer abcdefghijklmnop", kToken));
  EXPECT_FALSE(carries_token("", kToken));
  EXPECT_FALSE(carries_token("Bearer ", kToken));
  EXPECT_FALSE(carries_token("Bearerabcdefghijklmnop", kToken));
  EXPECT_FALSE(carries_token("Basic abcdefghijklmnop", kToken));
  EXPECT_FALSE(carries_token("Bearer abcdefghijklmno", kToken));
  EXPECT_FALSE(carries_token("Bearer abcdefghijklmnopq", kToken));
  EXPECT_FALSE(carries_token("Bearer bbcdefghijklmnop", kToken));
  EXPECT_FALSE(carries_token("Bearer abcdefghijklmnoq", kToken));
  EXPECT_FALSE(carries_token(std::string_view("Bearer abcdefghijklmnop\0", 24), kToken));
}

TEST(HostHeader, NamesLoopback) {
  for (const char* host : {"localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9400",
                           "127.255.0.3", "[::1]", "[::1]:9400"}) {
    EXPECT_TRUE(names_loopback(host)) << host;
  }
  for (const char* host : {"", "example.org", "localhost.example.org", "127.0.0.1.example.org",
                           "128.0.0.1", "[::2]:80", "::1", "127.1", "[::1", "0.0.0.0"}) {
    EXPECT_FALSE(names_loopback(host)) << host;
  }
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
  ASSERT_TRUE(first) << describe(first.status());
  EXPECT_GT(first->port, 0);
  EXPECT_EQ(first->url, "http://127.0.0.1:" + std::to_string(first->port));
  const Status taken = Listener::bind("localhost", first->port).status();
  EXPECT_EQ(taken.code, StatusCode::io_error);
  EXPECT_EQ(taken.resource, Resource::address);
  EXPECT_EQ(taken.native, EADDRINUSE);
  EXPECT_EQ(Listener::bind("example.org", 0).status().code, StatusCode::invalid_argument);
}

TEST(HttpHead, EndsAtABlankLine) {
  constexpr auto kNone = std::string_view::npos;
  EXPECT_EQ(end_of_head(""), kNone);
  EXPECT_EQ(end_of_head("GET / HTTP/1.1\r\n"), kNone);
  EXPECT_EQ(end_of_head("GET / HTTP/1.1\r\n\r"), kNone);
  EXPECT_EQ(end_of_head("G\r\n\r\n"), 5u);
  EXPECT_EQ(end_of_head("G\r\n\r\nbody\n\n"), 5u);
  EXPECT_EQ(end_of_head("G\n\n"), 3u);
  EXPECT_EQ(end_of_head("G\n\nx\r\n\r\n"), 3u);
  EXPECT_EQ(end_of_head("G\n\r\n"), 4u);
}

}  // namespace
}  // namespace kvarena::http
