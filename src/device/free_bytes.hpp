#pragma once

/// @file
/// The free memory of a device in signed bytes, as the planning functions need it.

#include "kvarena/device/device.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace kvarena {

/// Returns the free bytes, or the error of Device::memory_info.
inline Result<std::int64_t> free_bytes_of(const Device& device) {
  const Result<MemoryInfo> memory = device.memory_info();
  if (!memory) return memory.status();
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::int64_t>(std::min(memory->free_bytes, kMost));
}

}  // namespace kvarena
