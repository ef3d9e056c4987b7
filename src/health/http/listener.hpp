#pragma once

/// @file
/// `Listener`: a bound TCP socket that never blocks, and `Wakeup`, which ends a wait from another
/// thread. Own their descriptors, which children of this process do not inherit.

#include "kvarena/base/result.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace kvarena::http {

/// A file descriptor, closed at the end.
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

/// What an address is refused with.
constexpr Status no_address() noexcept { return invalid_option(Option::address, 0, 0, 0); }

/// Where to listen.
struct Listener {
  Descriptor socket;       ///< to wait for and accept from
  std::uint16_t port = 0;  ///< that it has
  std::string url;         ///< "http://127.0.0.1:15858"

  /// Binds. `address` is "localhost" or a numeric IPv4 or IPv6 address: no name service is asked.
  /// Returns invalid_argument (address) for anything else, io_error (address) with errno.
  static Result<Listener> bind(const std::string& address, std::uint16_t port);
};

/// Whether an address can be reached from this machine only; nothing for one that bind refuses.
std::optional<bool> is_loopback(const std::string& address);

/// Ends a poll.
class Wakeup {
 public:
  /// Returns io_error (event) with errno.
  static Result<Wakeup> create();
  /// To wait for.
  int number() const noexcept { return event_.number(); }
  /// Makes it readable, for good. From any thread.
  void wake() noexcept;
  /// Waits for wake, `limit` at most; whether it was called.
  bool await(std::chrono::milliseconds limit) const noexcept;

 private:
  Descriptor event_;
};

}  // namespace kvarena::http
