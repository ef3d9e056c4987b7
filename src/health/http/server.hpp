#pragma once

/// @file
/// `Server`: accepts the clients of a listener and serves them in one thread. When descriptors or
/// memory are short, connections fail, but the server goes on.

#include "health/http/connections.hpp"
#include "health/http/listener.hpp"

#include "kvarena/base/result.hpp"

#include <memory>
#include <thread>

namespace kvarena::http {

/// A running server. Not movable, because its thread refers to it.
class Server {
 public:
  /// Takes over the listener and starts the thread. Returns io_error (event) with errno, or
  /// exhausted (thread).
  static Result<std::unique_ptr<Server>> start(Listener listener, Endpoints endpoints,
                                               const Limits& limits);
  /// Stops promptly and closes all connections, finished or not.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Returns the listening socket.
  const Listener& listener() const noexcept { return listener_; }

 private:
  Server(Listener listener, Wakeup wakeup, std::unique_ptr<Connections> connections);
  void run() noexcept;
  void accept_some();

  Listener listener_;
  Wakeup wakeup_;
  std::unique_ptr<Connections> connections_;
  std::chrono::steady_clock::time_point
      accept_again_{};  ///< after a shortage: no accept before this time
  std::thread thread_;
};

}  // namespace kvarena::http
