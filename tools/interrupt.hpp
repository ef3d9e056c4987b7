#pragma once

/// @file
/// `Interrupt`: lets the user end a command early, so that the command can write its finished
/// results.

#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>

namespace kvarena::tools {

/// Catches SIGINT, SIGTERM and SIGHUP in any thread while it lives, and restores the old handlers
/// afterwards. Only the first of each signal is caught, and the same signal within half a second
/// of it counts as the same request; a later one ends the process. A SIGHUP that the process
/// ignores, as `nohup` has it, stays ignored. Only one Interrupt may live at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Waits for a signal, at most for `time`. Returns whether one has come since construction.
  bool wait_for(std::chrono::milliseconds time);
  /// A flag that becomes true when a signal has come. Long work reads it between two pieces. Any
  /// thread.
  const std::atomic<bool>& came() const noexcept;

  /// Does what a signal would: the command should end, for example because the reader of its output
  /// has gone. Does nothing where no Interrupt lives. Any thread, and signal handlers.
  static void request() noexcept;
  /// Whether SIGHUP has come to the last Interrupt.
  static bool hung_up() noexcept;

 private:
  std::array<int, 2> pipe_{-1, -1};
  std::array<struct sigaction, 3> before_{};  // one for each signal
};

}  // namespace kvarena::tools
