#pragma once

/// @file
/// `HealthServer`: a HealthMonitor over HTTP, for load balancers and Prometheus.
///
///     GET /health    200 or 503; JSON: status, resident, reasons, usage
///     GET /metrics   Prometheus text
///     GET /stats     JSON: everything that is known, holders included
///
/// Anything else is 404 (405 for other methods). Loopback by default; any other address needs a
/// token, sent as `Authorization: Bearer TOKEN`. Requests, connections and their time are limited;
/// what exceeds them is answered (408, 413, 431, 503) or cut off, and never stops the server.
///
/// Threads of its own; move-only; the monitor must outlive it. docs/operations.md shows the
/// answers.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace kvarena {

class HealthMonitor;

/// Options of a server.
struct HealthServerOptions {
  std::string address = "127.0.0.1";          ///< to bind to
  std::uint16_t port = 0;                     ///< 0: any free one
  std::string token;                          ///< 16 characters at least; empty only on loopback
  std::int32_t max_connections = 32;          ///< served at a time, 1 .. 1024; more get 503
  std::uint64_t max_request_bytes = 8 << 10;  ///< of a request, 256 .. 1 MiB
  std::int64_t request_limit_ms = 5'000;      ///< from accept to the last byte, 10 .. 600000
};

/// A running server.
class KVARENA_EXPORT HealthServer {
 public:
  /// Runs the monitor's first check if none has completed, then opens the port. Returns
  /// invalid_argument naming the option (name: a token is missing or too short), io_error (name)
  /// with errno when the address cannot be bound.
  static Result<HealthServer> start(HealthMonitor& monitor,
                                    const HealthServerOptions& options = {});
  /// Stops promptly; requests under way are cut off.
  ~HealthServer();
  HealthServer(HealthServer&&) noexcept;
  HealthServer& operator=(HealthServer&&) noexcept;

  /// The port that is listened on.
  std::uint16_t port() const noexcept;
  /// "http://127.0.0.1:9400".
  std::string url() const;

 private:
  struct Impl;
  explicit HealthServer(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
