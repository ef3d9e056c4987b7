#pragma once

/// @file
/// `Server`: accepts clients of a listener and serves them, all in one thread. Want of descriptors
/// or memory costs the connections of that moment, not the server.

#include "health/http/connections.hpp"
#include "health/http/listener.hpp"

#include "kvarena/base/result.hpp"

#include <memory>
#include <thread>

namespace kvarena::http {

/// A running server. Not movable: its thread refers to it.
class Server {
 public:
  /// Takes over the listener and starts the thread. Returns io_error (event) with errno, exhausted
  /// (thread).
  static Result<std::unique_ptr<Server>> start(Listener listener, Endpoints endpoints,
                                               const Limits& limits);
  /// Stops promptly; connections are closed as they are.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// What is listened on.
  const Listener& listener() const noexcept { return listener_; }

 private:
  Server(Listener listener, Wakeup wakeup, std::unique_ptr<Connections> connections);
  void run() noexcept;
  void accept_some();

  Listener listener_;
  Wakeup wakeup_;
  std::unique_ptr<Connections> connections_;
  std::chrono::steady_clock::time_point accept_again_{};  ///< not before this, after a shortage
  std::thread thread_;
};

}  // namespace kvarena::http
