#pragma once

/// @file
/// `Endpoints`: decides the answer to each request. It checks the path, the method, the body, and
/// the permission to read: a bearer token, or on loopback the Host header. Pure functions without
/// sockets.

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace kvarena::http {

inline constexpr std::size_t kMinTokenLength = 16;   ///< characters
inline constexpr std::size_t kMaxTokenLength = 256;  ///< characters

struct Answer {
  int status = 200;                         ///< HTTP status
  const char* content_type = "text/plain";  ///< type with charset or version
  std::string body{};                       ///< the whole body
};

/// Makes the answer of one path when a client asks for it. When it throws, the client gets 500.
using Route = std::function<Answer()>;
using Routes = std::map<std::string, Route, std::less<>>;

/// The parts of a request that decide the answer. Views of the connection's memory.
struct Request {
  std::string_view method;
  std::string_view path;             ///< as sent (http://HOST/... too), without the query
  std::string_view host{};           ///< the last Host header
  int num_hosts = 0;                 ///< how many there are
  bool needs_host = true;            ///< HTTP/1.1
  std::string_view authorization{};  ///< the last Authorization header
  int num_authorizations = 0;        ///< how many there are
  bool has_body = false;             ///< whether it has a body or announces one
  bool is_malformed = false;         ///< whether its line or a header is no HTTP
};

/// The routes and the rules of access.
struct Endpoints {
  Routes routes;           ///< the paths for GET and HEAD; another path is 404
  std::string token;       ///< the required token; empty: none
  bool check_host = true;  ///< whether Host must name loopback when there is no token

  /// Returns 400, 401, 403, 404, 405, 413, or the answer of the route.
  Answer answer(Request request) const;
};

/// Returns whether `token` is valid: its length is in range, and it has only letters, digits and
/// -._~+/= (RFC 6750).
bool is_valid_token(std::string_view token) noexcept;
/// Returns whether an Authorization header carries the token. The time does not depend on where the
/// two differ.
bool carries_token(std::string_view authorization, std::string_view token) noexcept;
/// Returns whether a Host header names this machine's loopback: localhost, 127.x.x.x or [::1], with
/// or without a port. The check stops a web page whose site rebinds its name to loopback.
bool names_loopback(std::string_view host) noexcept;

}  // namespace kvarena::http
