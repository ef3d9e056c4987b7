#pragma once

/// @file
/// How many blocks an engine can have at most on a device as it is: found by trying, because only
/// the device knows what fits. One thread at a time.

#include "scenarios/pressure_engine.hpp"

#include <cstdint>
#include <string>

namespace kvarena::replay::pressure {

/// What trying gave.
struct LargestPool {
  std::int64_t num_blocks = 0;  ///< with so many an engine was made
  Status refused;               ///< what one block more gave: insufficient_vram
  std::string refused_request;  ///< what was asked for then, in Device::describe's words
  std::int64_t attempts = 0;
};

/// Makes engines of `options` and of larger pools, and unmakes them. Returns insufficient_vram when
/// not even the blocks of `options` fit, or any other failure of PressureEngine::create. O(log
/// blocks) engines.
Result<LargestPool> find_largest_pool(Device& device, const PressureModel& model,
                                      const PressureEngineOptions& options);

}  // namespace kvarena::replay::pressure
