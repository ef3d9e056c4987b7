#pragma once

/// @file
/// `Connections`: the clients of a server, from accept to close. libmicrohttpd reads requests and
/// writes answers; this adds what it has no option for: a limit on a connection's whole time, and
/// room for the next client when all places are taken. Each connection answers one request. A slow
/// or silent client costs a descriptor and a bounded buffer, never a thread. One thread at a time.
///
/// Why libmicrohttpd: it runs any number of connections in the caller's thread, its memory for a
/// connection is bounded, and it tells its descriptors. cpp-httplib and civetweb hold a thread for
/// each client that is slow, and have no limit on a request's whole time.

#include "health/http/endpoints.hpp"

#include "kvarena/base/result.hpp"

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>

struct MHD_Daemon;

namespace kvarena::http {

/// What a client may take.
struct Limits {
  std::size_t max_connections = 32;          ///< at a time
  std::size_t max_request_bytes = 8 << 10;   ///< of a request's head
  std::chrono::milliseconds request{5'000};  ///< from accept to the last byte
};

/// The connections of a server.
class Connections {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Returns io_error (event) with errno.
  static Result<std::unique_ptr<Connections>> create(Endpoints endpoints, const Limits& limits);
  /// Closes all as they are.
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  /// Takes over a connected socket, which may close it at once.
  void adopt(int socket);
  /// Goes on with everything that can. Clients whose time is over are told so (408) or cut off;
  /// those that are too many, the longest waiting first, get 429.
  void turn();
  /// Becomes readable when turn has something to do,
  int descriptor() const noexcept { return descriptor_; }
  /// or in so many milliseconds; -1: never.
  int timeout_ms() const;
  /// How many there are.
  std::size_t size() const noexcept { return clients_.size(); }

 private:
  struct Client;
  struct Callbacks;

  Connections(Endpoints endpoints, const Limits& limits);
  // Both return whether they have cut anyone off.
  bool cut_off_late_ones();
  bool make_room();

  Endpoints endpoints_;
  Limits limits_;
  std::list<Client> clients_;  ///< in order of accept
  MHD_Daemon* daemon_ = nullptr;
  int descriptor_ = -1;
};

}  // namespace kvarena::http
