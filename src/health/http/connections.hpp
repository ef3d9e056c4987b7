#pragma once

/// @file
/// `Connections`: the clients of a server, from accept to close. libmicrohttpd reads requests and
/// writes answers. Connections adds a limit on a connection's whole time, and room for the next
/// client when all connections are in use; libmicrohttpd has no option for these. Each connection
/// answers one request. A slow or silent client takes a descriptor and a bounded buffer, never a
/// thread. One thread at a time.
///
/// libmicrohttpd was chosen because it runs any number of connections in the caller's thread,
/// bounds the memory of each connection, and gives out its descriptors. cpp-httplib and civetweb
/// use a thread for each slow client and have no limit on a request's whole time.

#include "health/http/endpoints.hpp"

#include "kvarena/base/result.hpp"

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>

struct MHD_Daemon;

namespace kvarena::http {

struct Limits {
  std::size_t max_connections = 32;          ///< connections at a time
  std::size_t max_request_bytes = 8 << 10;   ///< bytes of a request's head
  std::chrono::milliseconds request{5'000};  ///< from accept to the last byte
};

class Connections {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Starts the daemon. Returns io_error (event) with errno.
  static Result<std::unique_ptr<Connections>> create(Endpoints endpoints, const Limits& limits);
  /// Closes all connections, finished or not.
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  /// Takes over a connected socket. May close it at once.
  void adopt(int socket);
  /// Does all work that does not wait. Clients whose time is over get 408 or are cut off. When
  /// there are too many clients, the longest waiting ones get 429.
  void turn();
  /// Returns a descriptor that becomes readable when turn has work.
  int descriptor() const noexcept { return descriptor_; }
  /// Returns the milliseconds after which turn has work even when the descriptor is not readable;
  /// -1: none.
  int timeout_ms() const;
  std::size_t size() const noexcept { return clients_.size(); }

 private:
  struct Client;
  struct Callbacks;

  Connections(Endpoints endpoints, const Limits& limits);
  // Both return whether they have cut off a client.
  bool cut_off_late_ones();
  bool make_room();

  Endpoints endpoints_;
  Limits limits_;
  std::list<Client> clients_;  ///< in order of accept
  MHD_Daemon* daemon_ = nullptr;
  int descriptor_ = -1;
};

}  // namespace kvarena::http
