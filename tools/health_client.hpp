#pragma once

/// @file
/// `HealthClient`: asks a kvarena HTTP server for JSON, and says clearly what went wrong.

#include "http_address.hpp"

#include <nlohmann/json.hpp>

#include <string>

namespace kvarena::tools {

/// What a server answered, or why there is nothing.
struct HealthAnswer {
  nlohmann::ordered_json document;  ///< null when it failed
  std::string happened;             ///< why it failed; empty: it did not
  std::string advice;               ///< what to do

  bool is_ok() const noexcept { return happened.empty(); }
};

/// One server.
class HealthClient {
 public:
  HealthClient(HttpAddress address, std::string token)
      : address_(std::move(address)), token_(std::move(token)) {}

  /// GET /stats. Waits a few seconds at most.
  HealthAnswer stats() const;

 private:
  HttpAddress address_;
  std::string token_;
};

}  // namespace kvarena::tools
