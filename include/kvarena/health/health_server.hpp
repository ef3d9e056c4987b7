#pragma once

/// @file
/// `HealthServer`: serves the reports of a HealthMonitor over HTTP, for load balancers and
/// Prometheus.
///
///     GET /health    200 or 503; JSON: status, resident, reasons, usage
///     GET /live      200, or 503 when only a new process helps (device_lost); text
///     GET /metrics   Prometheus text
///     GET /stats     JSON: everything that is known, holders included
///
/// The server answers GET and HEAD. Another method gets 405, another path 404. The server listens
/// on loopback by default. Any other address needs a token, which the client sends as
/// `Authorization: Bearer TOKEN`; a request without it gets 401. On loopback without a token, the
/// Host header must name loopback, so that no web page can read the answers; another Host gets 403.
/// The sizes of requests, the number of connections and their time are limited. A client that
/// exceeds a limit gets 408, 413, 414, 429 or 431, or is cut off; the server goes on. Each
/// connection answers one request. 503 says that the process is unhealthy, never that the server is
/// overloaded. When all connections are in use, the longest waiting client gets 429 and the new
/// client takes its place.
///
/// The server runs in one thread of its own. Move-only. The monitor must outlive it and must not be
/// moved meanwhile. docs/reference/metrics.md shows the answers.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace kvarena {

class HealthMonitor;

/// Options of a server.
struct HealthServerOptions {
  std::string address = "127.0.0.1";  ///< "localhost", or numeric: IPv4 or IPv6
  std::uint16_t port = 0;             ///< 0: any free port
  std::string token = {};  ///< 16 .. 256 letters, digits and -._~+/=; may be empty on loopback only
  std::int32_t max_connections =
      32;  ///< at a time, 1 .. 1024; when more come, the longest waiting clients get 429
  std::uint64_t max_request_bytes = 8 << 10;  ///< of a request with its headers, 256 .. 1 MiB
  std::int64_t request_limit_ms = 5'000;      ///< from accept to the last byte, 10 .. 600000
};

/// A running server.
class KVARENA_EXPORT HealthServer {
 public:
  /// Starts a server. Runs a check first when the monitor watches something that no check has seen.
  /// Returns invalid_argument with the option, io_error with errno (address: it cannot be bound;
  /// event: no descriptor is left), or exhausted (thread).
  static Result<HealthServer> start(HealthMonitor& monitor,
                                    const HealthServerOptions& options = {});
  /// Stops promptly and cuts off unfinished requests.
  ~HealthServer();
  HealthServer(HealthServer&&) noexcept;
  HealthServer& operator=(HealthServer&&) noexcept;

  /// Returns the port on which the server listens.
  std::uint16_t port() const noexcept;
  /// Returns the server's address, such as "http://127.0.0.1:15858".
  std::string url() const;

 private:
  struct Impl;
  explicit HealthServer(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
