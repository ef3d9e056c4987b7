#pragma once

/// @file
/// Waiting for the end of work whose failure another call reports. An event behind failed work
/// completes as failed. The work is over then, and its slot and its blocks can be used again.
/// synchronize(stream) returns the failure of the work. The functions here return only a failure of
/// the call itself. The work of a stream that was destroyed is over too.

#include "kvarena/base/result.hpp"
#include "kvarena/device/device.hpp"

namespace kvarena {

/// Returns whether the event's last recording has completed, as failed or not.
inline Result<bool> is_over(Device& device, EventId event) {
  const Result<bool> complete = device.is_complete(event);
  if (complete) return complete;
  const Result<bool> again = device.is_complete(event);  // the failure of a recording stays the
                                                         // same
  if (again || again.status() != complete.status()) return again;
  return true;
}

/// Returns whether the event's last recording has completed, or the failure in front of it. A call
/// that fails once is made again.
inline Result<bool> is_complete(Device& device, EventId event) {
  const Result<bool> complete = device.is_complete(event);
  return complete ? complete : device.is_complete(event);
}

/// Waits until the event's last recording has completed, as failed or not.
inline Status wait_until_over(Device& device, EventId event) {
  const Status waited = device.synchronize(event);
  if (waited) return waited;
  const Result<bool> complete = device.is_complete(event);
  if (complete) return *complete ? Status{} : waited;
  return complete.status() == waited ? Status{} : complete.status();
}

/// Returns the status of a call about the end of a stream's work, or ok when the stream does not
/// exist any more.
constexpr Status unless_destroyed(const Status& status) noexcept {
  const bool is_destroyed =
      status.code == StatusCode::not_found && status.resource == Resource::stream;
  return is_destroyed ? Status{} : status;
}

}  // namespace kvarena
