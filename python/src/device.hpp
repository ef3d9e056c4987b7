#pragma once

/// @file
/// A device of the C interface, shared by what lives on it.

#include <memory>

#include "core.hpp"
#include "tensors.hpp"

namespace kvarena::python {

/// A handle of a device. The device shares it with the memory that was allocated there, and it ends
/// with the last of them; caches keep what stands behind it.
struct DeviceHandle {
  kvarena_device* handle = nullptr;

  ~DeviceHandle() {
    if (handle != nullptr) at_end(kvarena_device_release, handle);
  }
};

/// What Python has of a device.
struct Device {
  std::shared_ptr<DeviceHandle> open = std::make_shared<DeviceHandle>();  ///< null: closed
  bool is_cuda = false;
  bool runs_in_calls = false;  ///< a host device without threads: work ends with the call
  std::int32_t ordinal = -1;

  /// Returns the handle. Raises kvarena.FailedPrecondition after close.
  kvarena_device* handle() const {
    if (open == nullptr) raise_closed("the device is closed");
    return open->handle;
  }
  Witness witness() const { return {.device = open == nullptr ? nullptr : open->handle}; }
  Place place(void* stream = nullptr) const { return {is_cuda, ordinal, stream}; }
};

/// Returns the stream for a call: `given`, or if it is None torch's current stream on a GPU, else
/// null, which the C interface understands as the object's own.
void* chosen_stream(const Device& device, nb::handle given);

}  // namespace kvarena::python
