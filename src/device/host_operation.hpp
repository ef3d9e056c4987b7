#pragma once

/// @file
/// Operations that a stream runs on the host, on either kind of device.

#include "kvarena/device/device.hpp"

#include <cstdint>

namespace kvarena {

/// A place in a stream's order of work. It also counts as reached when the stream has been
/// destroyed.
struct StreamPoint {
  StreamId stream;             ///< which stream; 0: always reached
  std::uint64_t position = 0;  ///< reached when this many operations have completed
};

/// One queued operation.
struct HostOperation {
  /// The kinds of operations.
  enum class Kind : std::uint8_t { copy, fill, host_function, wait };

  Kind kind = Kind::wait;           ///< decides which of the fields below are used
  std::uint8_t value = 0;           ///< fill
  void* target = nullptr;           ///< copy, fill
  const void* source = nullptr;     ///< copy
  std::uint64_t bytes = 0;          ///< copy, fill
  HostFunction function = nullptr;  ///< host_function
  void* argument = nullptr;         ///< host_function
  StreamPoint point{};              ///< wait
};

/// Runs a copy, a fill or a host function now, on this thread. Does nothing for a wait.
Status run(const HostOperation& operation) noexcept;

}  // namespace kvarena
