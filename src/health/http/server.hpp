#pragma once

/// @file
/// `Server`: answers connections of a listener from one thread, all of them at once. What a client
/// may take is limited: bytes of a request, time from accept to the last byte, connections at a
/// time. A client that exceeds a limit is told so, and nobody waits for it: a slow or silent client
/// costs a descriptor until its time is over, more connections than are served get 503 at once.
///
/// cpp-httplib has a server loop too; this one is used instead because that one ends for good at
/// a passing failure of accept, waits a thread long for each slow client, and has no limit on a
/// connection's whole time nor on how many there are.

#include "health/http/endpoints.hpp"
#include "health/http/listener.hpp"

#include "kvarena/base/result.hpp"

#include <chrono>
#include <cstddef>
#include <thread>

namespace kvarena::http {

/// What a client may take.
struct Limits {
  std::size_t max_connections = 32;          ///< read or answered at a time
  std::size_t max_request_bytes = 8 << 10;   ///< of a request's head
  std::chrono::milliseconds request{5'000};  ///< from accept to the last byte
};

/// A running server. Not movable: its thread refers to it.
class Server {
 public:
  /// Takes over the listener; `endpoints` is borrowed. Call start next.
  Server(Listener listener, Wakeup wakeup, Endpoints& endpoints, const Limits& limits);
  /// Stops promptly; connections are closed as they are.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Starts the thread. Returns exhausted (thread).
  Status start();
  /// What is listened on.
  const Listener& listener() const noexcept { return listener_; }

 private:
  void run() noexcept;

  Listener listener_;
  Wakeup wakeup_;
  Endpoints& endpoints_;
  Limits limits_;
  std::thread thread_;
};

}  // namespace kvarena::http
