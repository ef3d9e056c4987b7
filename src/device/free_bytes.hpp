#pragma once

/// @file
/// A device's free memory in the signed bytes of the planning functions.

#include "kvarena/device/device.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace kvarena {

/// Returns what Device::memory_info returns.
inline Result<std::int64_t> free_bytes_of(const Device& device) {
  const Result<MemoryInfo> memory = device.memory_info();
  if (!memory) return memory.status();
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::int64_t>(std::min(memory->free_bytes, kMost));
}

}  // namespace kvarena
