#pragma once

/// @file
/// A device of the C interface, shared by what lives on it.

#include <memory>

#include "core.hpp"
#include "tensors.hpp"

namespace kvarena::python {

/// A handle of a device. Its end gives the handle up; caches keep the device itself.
struct Device {
  kvarena_device* handle = nullptr;
  bool is_cuda = false;
  bool runs_in_calls = false;  ///< a host device without threads: work ends with the call
  std::int32_t ordinal = -1;

  ~Device() { kvarena_device_release(handle); }
  Witness witness() const { return {.device = handle}; }
  Place place(void* stream = nullptr) const { return {is_cuda, ordinal, stream}; }
};

/// Returns the stream for a call: `given`, or if it is None torch's current stream on a GPU, else
/// null, which the C interface understands as the object's own.
void* chosen_stream(const Device& device, nb::handle given);

}  // namespace kvarena::python
