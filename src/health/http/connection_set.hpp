#pragma once

/// @file
/// `ConnectionSet`: the connections of a server, and one turn of its loop over them. One thread.

#include "health/http/connection.hpp"
#include "health/http/server.hpp"

#include <poll.h>

#include <list>
#include <vector>

namespace kvarena::http {

/// Before the next try of what descriptors or memory did not suffice for.
inline constexpr std::chrono::milliseconds kRest{50};

/// Accepts, waits and advances.
class ConnectionSet {
 public:
  ConnectionSet(const Listener& listener, const Wakeup& wakeup, Endpoints& endpoints,
                const Limits& limits);

  /// Waits until something can go on, and goes on with it. False: the wakeup ended the wait.
  /// Connections that cannot be waited for are closed. Throws only bad_alloc.
  bool turn();

 private:
  int wait();
  int poll_timeout_ms() const;
  void accept_all();
  void accept_one(int socket);
  void drop_closed();

  const Listener& listener_;
  const Wakeup& wakeup_;
  Endpoints& endpoints_;
  Limits limits_;
  std::chrono::milliseconds linger_;
  Time accept_again_{};  ///< accept failed for want of descriptors or memory: not before this
  std::list<Connection> connections_;  ///< in order of accept
  std::vector<pollfd> waited_;         ///< wakeup, listener, then as connections_
};

}  // namespace kvarena::http
