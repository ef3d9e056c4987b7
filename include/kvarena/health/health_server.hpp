#pragma once

/// @file
/// `HealthServer`: a HealthMonitor over HTTP, for load balancers and Prometheus.
///
///     GET /health    200 or 503; JSON: status, resident, reasons, usage
///     GET /live      200, or 503 when only a new process helps (device_lost); text
///     GET /metrics   Prometheus text
///     GET /stats     JSON: everything that is known, holders included
///
/// GET and HEAD; other methods are 405, other paths 404. Loopback by default; any other address
/// needs a token, sent as `Authorization: Bearer TOKEN` (401). On loopback without a token the Host
/// header must name loopback (403), so that no web page reads it. Requests, connections and their
/// time are limited; what exceeds them is answered (408, 413, 414, 429, 431) or cut off, and never
/// stops the server. Each connection answers one request. 503 is an illness, never an overload:
/// when all places are taken, the client that has been slow for longest gets 429 and the new one
/// its place.
///
/// One thread of its own; move-only; the monitor must outlive it, and stay where it is.
/// docs/reference/metrics.md shows the answers.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace kvarena {

class HealthMonitor;

/// Options of a server.
struct HealthServerOptions {
  std::string address = "127.0.0.1";          ///< "localhost", or numeric: IPv4 or IPv6
  std::uint16_t port = 0;                     ///< 0: any free one
  std::string token = {};                     ///< 16 .. 256 letters, digits and -._~+/=; empty on
                                              ///< loopback only
  std::int32_t max_connections = 32;          ///< at a time, 1 .. 1024; of more the
                                              ///< longest waiting get 429
  std::uint64_t max_request_bytes = 8 << 10;  ///< of a request, headers included, 256 .. 1 MiB
  std::int64_t request_limit_ms = 5'000;      ///< from accept to the last byte, 10 .. 600000
};

/// A running server.
class KVARENA_EXPORT HealthServer {
 public:
  /// Runs a check first when the monitor has seen nothing yet, or not all that it watches. Returns
  /// invalid_argument naming the option, io_error with errno
  /// (address: it cannot be bound; event: no descriptor is left), exhausted (thread).
  static Result<HealthServer> start(HealthMonitor& monitor,
                                    const HealthServerOptions& options = {});
  /// Stops promptly; requests under way are cut off.
  ~HealthServer();
  HealthServer(HealthServer&&) noexcept;
  HealthServer& operator=(HealthServer&&) noexcept;

  /// The port that is listened on.
  std::uint16_t port() const noexcept;
  /// "http://127.0.0.1:15858".
  std::string url() const;

 private:
  struct Impl;
  explicit HealthServer(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
