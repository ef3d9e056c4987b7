#pragma once

/// @file
/// `Neighbour`: another process, ours to command, that takes and frees memory (neighbour_server.hpp
/// is its side). Owns the process: it does not outlive this object, which waits for its end, nor
/// this process, since it ends when nobody can write to it any more. Move is not needed; one thread
/// at a time.

#include "replay/failure.hpp"

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::replay::pressure {

/// A child process.
class Neighbour {
 public:
  /// Starts `command`, program and arguments, and waits until it is ready. What fails is in words.
  static MaybeFailure start(const std::vector<std::string>& command,
                            std::unique_ptr<Neighbour>* neighbour);
  /// Ends it, whatever it does.
  ~Neighbour();
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  /// Lets it take so many bytes more, and write to them.
  MaybeFailure take(std::int64_t bytes);
  /// Lets it free all that it has.
  MaybeFailure free();
  /// Lets it end, and waits for that; a failure when it does not end well. The last call.
  MaybeFailure quit();
  /// What it has now.
  std::int64_t held_bytes() const noexcept { return held_bytes_; }
  /// Its process.
  pid_t pid() const noexcept { return pid_; }

 private:
  Neighbour(int socket, pid_t pid) noexcept : socket_(socket), pid_(pid) {}
  MaybeFailure send(std::string_view line);
  MaybeFailure receive(std::string* line);
  MaybeFailure ask(const std::string& line, const std::string& expected);
  ReplayFailure gone(std::string_view what);
  int wait() noexcept;

  int socket_;
  pid_t pid_;  // 0: it has been waited for
  std::int64_t held_bytes_ = 0;
};

}  // namespace kvarena::replay::pressure
