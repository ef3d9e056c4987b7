#pragma once

/// @file
/// The neighbour: what runs in a process beside ours that takes and frees memory of the same device
/// when it is told to, a line at a time:
///
///     <- ready
///     -> take BYTES      <- took TOTAL, or refused REQUIRED AVAILABLE
///     -> free            <- freed TOTAL
///     -> quit            it ends, as it does when nobody is there to write any more
///
/// Memory that was taken is written to: on a host nothing is taken before.

#include "kvarena/device/device.hpp"

#include <iosfwd>

namespace kvarena::replay::pressure {

/// Serves lines of `in` until it ends or says quit; then all memory is freed. Returns false after a
/// line it does not know (answered by "unknown"). One thread.
bool serve_neighbour(Device& device, std::istream& in, std::ostream& out);

}  // namespace kvarena::replay::pressure
