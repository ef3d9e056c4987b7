#pragma once

/// @file
/// `Interrupt`: the user ends a command early, and the command writes what it has finished.

#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>

namespace kvarena::tools {

/// Catches SIGINT and SIGTERM while it lives, whichever thread they reach; before and afterwards
/// they do what they did. Of each the first is caught: who cannot wait sends a second, which ends
/// the process. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Waits for a signal, at most for `time`. Whether one has come since construction.
  bool wait_for(std::chrono::milliseconds time);
  /// True once one has come: what long work asks between two pieces. Any thread.
  const std::atomic<bool>& came() const noexcept;

  /// Does what a signal would: the command should end, for example because the reader of its output
  /// has gone. Does nothing where no Interrupt lives. Any thread, and signal handlers.
  static void request() noexcept;

 private:
  std::array<int, 2> pipe_{-1, -1};
  struct sigaction interrupt_ {};  // what there was before
  struct sigaction terminate_ {};
};

}  // namespace kvarena::tools
