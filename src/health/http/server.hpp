#pragma once

/// @file
/// `Server`: accepts the clients of a listener and serves them in one thread. When descriptors or
/// memory are short, connections fail, but the server goes on. `Listener`: a bound TCP socket that
/// never blocks. `Wakeup`: ends a wait from another thread. Both own their descriptors. Child
/// processes do not inherit the descriptors.

#include "health/http/connections.hpp"

#include "kvarena/base/result.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace kvarena::http {

/// Owns a file descriptor and closes it.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  int number() const noexcept { return number_; }
  bool is_open() const noexcept { return number_ >= 0; }

 private:
  int number_;
};

constexpr Status no_address() noexcept { return invalid_option(Option::address, 0, 0, 0); }

/// A listening socket with its address.
struct Listener {
  Descriptor socket;       ///< the socket to poll and to accept from
  std::uint16_t port = 0;  ///< its port
  std::string url;         ///< "http://127.0.0.1:15858"

  /// Binds a socket. `address` is "localhost" or a numeric IPv4 or IPv6 address. No name service is
  /// asked. Returns invalid_argument (address) for any other address, or io_error (address) with
  /// errno.
  static Result<Listener> bind(const std::string& address, std::uint16_t port);
};

/// Returns whether an address can be reached only from this machine; nullopt for an address that
/// bind refuses.
std::optional<bool> is_loopback(const std::string& address);

/// Ends a poll.
class Wakeup {
 public:
  /// Makes one. Returns io_error (event) with errno.
  static Result<Wakeup> create();
  int number() const noexcept { return event_.number(); }
  /// Makes the descriptor readable for ever. Any thread.
  void wake() noexcept;
  /// Waits for wake, at most for `limit`. Returns whether wake was called.
  bool await(std::chrono::milliseconds limit) const noexcept;

 private:
  Descriptor event_;
};

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
