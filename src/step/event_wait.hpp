#pragma once

/// @file
/// Waiting for the end of work whose failure somebody else is told. An event behind failed work has
/// completed as failed: the work is over, its slot and its blocks can be used again; the failure
/// itself comes from synchronize(stream). A failure of the call alone is returned.

#include "kvarena/base/result.hpp"
#include "kvarena/device/device.hpp"

namespace kvarena {

/// Whether the event's last recording has completed, as failed or not.
inline Result<bool> is_over(Device& device, EventId event) {
  const Result<bool> complete = device.is_complete(event);
  if (complete) return complete;
  const Result<bool> again = device.is_complete(event);  // a recorded failure stays the same
  if (again || again.status() != complete.status()) return again;
  return true;
}

/// Waits until the event's last recording has completed, as failed or not.
inline Status wait_until_over(Device& device, EventId event) {
  const Status waited = device.synchronize(event);
  if (waited) return waited;
  const Result<bool> complete = device.is_complete(event);
  if (complete) return *complete ? Status{} : waited;
  return complete.status() == waited ? Status{} : complete.status();
}

}  // namespace kvarena
