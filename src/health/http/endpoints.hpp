#pragma once

/// @file
/// `Endpoints`: which request gets which answer. Routes, who may read (a bearer token, or on
/// loopback the Host header), methods and bodies. Pure; nothing here touches a socket.

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace kvarena::http {

inline constexpr std::size_t kMinTokenLength = 16;   ///< characters
inline constexpr std::size_t kMaxTokenLength = 256;  ///< characters

/// The body for a path and what it is.
struct Answer {
  int status = 200;                         ///< of HTTP
  const char* content_type = "text/plain";  ///< with charset or version
  std::string body{};                       ///< whole
};

/// Makes the answer of one path, at the moment it is asked for. May throw: 500.
using Route = std::function<Answer()>;
/// All paths there are.
using Routes = std::map<std::string, Route, std::less<>>;

/// What matters of a request. Views of the connection's memory.
struct Request {
  std::string_view method;
  std::string_view path;             ///< as sent, without the query; nothing is unescaped
  std::string_view host{};           ///< the last Host header
  int num_hosts = 0;                 ///< how many there are
  std::string_view authorization{};  ///< the last Authorization header
  int num_authorizations = 0;        ///< how many there are
  bool has_body = false;             ///< or says that it has one
};

/// What is served to whom.
struct Endpoints {
  Routes routes;           ///< answered by GET and HEAD; anything else is 404
  std::string token;       ///< asked for; empty: none
  bool check_host = true;  ///< without a token: Host must name loopback

  /// 400, 401, 403, 404, 405, 413, or what the route says.
  Answer answer(const Request& request) const;
};

/// Whether `token` may be one: its length, and letters, digits and -._~+/= alone (RFC 6750).
bool is_valid_token(std::string_view token) noexcept;
/// Whether an Authorization header carries the token. Takes the same time wherever they differ.
bool carries_token(std::string_view authorization, std::string_view token) noexcept;
/// Whether a Host header names this machine's loopback: localhost, 127.x.x.x or [::1], with or
/// without a port. A page of another site that rebinds its name to loopback fails here.
bool names_loopback(std::string_view host) noexcept;

}  // namespace kvarena::http
