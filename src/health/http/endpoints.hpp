#pragma once

/// @file
/// `Endpoints`: from the bytes of a request to the bytes of its answer. cpp-httplib parses and
/// writes; nothing here touches a socket. One thread at a time.

#include "health/http/http_answer.hpp"

#include <memory>
#include <string>
#include <string_view>

namespace kvarena::http {

/// What is served to whom.
struct EndpointsOptions {
  Routes routes;           ///< answered by GET and HEAD; anything else is 404
  std::string token;       ///< asked for; empty: none
  bool check_host = true;  ///< without a token: Host must name loopback
};

/// Answers requests.
class Endpoints {
 public:
  explicit Endpoints(EndpointsOptions options);
  ~Endpoints();
  Endpoints(const Endpoints&) = delete;
  Endpoints& operator=(const Endpoints&) = delete;

  /// The whole response to a request whose head is `head`, blank line included. The connection is
  /// to be closed behind it. Answers whatever the bytes are; throws only bad_alloc.
  std::string answer(std::string_view head);

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace kvarena::http
