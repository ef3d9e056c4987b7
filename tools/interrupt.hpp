#pragma once

/// @file
/// `Interrupt`: waiting for the user to end a command.

#include <signal.h>

#include <array>
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

 private:
  std::array<int, 2> pipe_{-1, -1};
  struct sigaction interrupt_ {};  // what there was before
  struct sigaction terminate_ {};
};

}  // namespace kvarena::tools
