#pragma once

/// @file
/// `HealthClient`: asks a kvarena HTTP server, and says clearly what went wrong.

#include "tools/http_address.hpp"

#include <chrono>
#include <string>

namespace kvarena::tools {

/// What a server answered, or why there is nothing.
struct HealthAnswer {
  std::string body;      ///< of the answer, as it came
  std::string happened;  ///< why it failed; empty: it did not
  std::string advice;    ///< what to do

  bool is_ok() const noexcept { return happened.empty(); }
};

/// One server.
class HealthClient {
 public:
  /// Waits `patience` for a connection, and again for each part of an answer.
  HealthClient(HttpAddress address, std::string token,
               std::chrono::milliseconds patience = std::chrono::seconds(5))
      : address_(std::move(address)), token_(std::move(token)), patience_(patience) {}

  /// GET /stats. An answer is at most 64 MiB, and ends within twelve times the patience.
  HealthAnswer stats() const;

 private:
  HttpAddress address_;
  std::string token_;
  std::chrono::milliseconds patience_;
};

}  // namespace kvarena::tools
