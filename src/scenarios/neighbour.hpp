#pragma once

/// @file
/// `Neighbour`: controls a child process that takes and frees memory. The child runs
/// serve_neighbour, which executes one command a line on the same device:
///
///     <- ready
///     -> take BYTES      <- took TOTAL, or refused REQUIRED AVAILABLE
///     -> free            <- freed TOTAL
///     -> quit            it ends, as it does when nobody is there to write any more
///
/// The child writes to the memory that it takes, because a host commits memory only then. A
/// Neighbour owns the child and waits for its end in the destructor. The child ends when this
/// process ends. One thread at a time.

#include "scenarios/report.hpp"

#include "kvarena/device/device.hpp"

#include <sys/types.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::scenarios {

class Neighbour {
 public:
  /// Starts `command`, program and arguments, and waits until it is ready. What fails is in words.
  static MaybeFailure start(const std::vector<std::string>& command,
                            std::unique_ptr<Neighbour>* neighbour);
  /// Ends it, whatever it does.
  ~Neighbour();
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  /// Makes the child take so many more bytes and write to them.
  MaybeFailure take(std::int64_t bytes);
  MaybeFailure free();
  /// Lets it end, and waits for that; a failure when it does not end well. The last call.
  MaybeFailure quit();
  /// Returns the bytes that the child has now.
  std::int64_t held_bytes() const noexcept { return held_bytes_; }
  pid_t pid() const noexcept { return pid_; }

 private:
  Neighbour(int socket, pid_t pid) noexcept : socket_(socket), pid_(pid) {}
  MaybeFailure send(std::string_view line);
  MaybeFailure receive(std::string* line);
  MaybeFailure ask(const std::string& line, const std::string& expected);
  Failure gone(std::string_view what);
  int wait() noexcept;

  int socket_;
  pid_t pid_;  // 0: it has been waited for
  std::int64_t held_bytes_ = 0;
};

/// Serves lines of `in` until it ends or says quit; then all memory is freed. Returns false after a
/// line it does not know (answered by "unknown"). One thread.
bool serve_neighbour(Device& device, std::istream& in, std::ostream& out);

}  // namespace kvarena::scenarios
