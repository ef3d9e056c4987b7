#pragma once

/// @file
/// What a stream runs on the host, whichever device the stream is of.

#include "kvarena/device/device.hpp"

#include <cstdint>

namespace kvarena {

/// A place in a stream's order of work. Reached also when the stream has been destroyed.
struct StreamPoint {
  StreamId stream;             ///< which stream; 0: always reached
  std::uint64_t position = 0;  ///< reached when that many operations have completed
};

/// One queued operation.
struct HostOperation {
  /// What to do.
  enum class Kind : std::uint8_t { copy, fill, host_function, wait };

  Kind kind = Kind::wait;           ///< which of the fields below count
  std::uint8_t value = 0;           ///< fill
  void* target = nullptr;           ///< copy, fill
  const void* source = nullptr;     ///< copy
  std::uint64_t bytes = 0;          ///< copy, fill
  HostFunction function = nullptr;  ///< host_function
  void* argument = nullptr;         ///< host_function
  StreamPoint point{};              ///< wait
};

/// Runs a copy, a fill or a host function here and now; a wait is nothing.
Status run(const HostOperation& operation) noexcept;

}  // namespace kvarena
