#pragma once

/// @file
/// Residency of a pool plane by plane: where K and V of each layer lie, by the device's own word.
/// Waits for nothing. One thread at a time.

#include "replay/failure.hpp"
#include "scenarios/scenario_report.hpp"

#include "kvarena/allocator/arena.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <string>

namespace kvarena::replay::pressure {

/// What asking for all planes gave.
struct PlaneResidency {
  std::int64_t planes = 0;      ///< K and V of all layers
  std::int64_t ranges = 0;      ///< asked about: each plane's range of the first and the last block
  std::int64_t permitted = 0;   ///< of them, where the policy wants them
  std::string place;            ///< of all of them; "a, b" where they differ
  std::string first_violation;  ///< layer, kind and what the driver said; empty when none
};

/// Asks for the first and the last block of every plane. Returns what Device::place_of returns.
Result<PlaneResidency> check_planes(const Device& device, const Arena& arena);

/// Every plane, and every tracked allocation, is where it must be: figures and checks named after
/// `moment`, e.g. "before decode".
MaybeFailure expect_resident(ScenarioReport& report, const std::string& moment,
                             const Device& device, const Arena& arena);

}  // namespace kvarena::replay::pressure
