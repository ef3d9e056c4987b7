#pragma once

/// @file
/// `MemoryBalance`: what has to be the same again when all that was taken has been given back.
/// `expect_refused`: a call that must fail for want of memory, and leave the balance as it was.
/// Plain values and functions.

#include "scenarios/scenario_report.hpp"

#include "kvarena/device/device.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace kvarena::replay::pressure {

/// Memory of a device at one moment.
struct MemoryBalance {
  std::int64_t driver_free = 0;  ///< bytes; Device::memory_info
  std::int64_t tracked = 0;      ///< bytes of kind device
  std::int64_t staging = 0;      ///< bytes of kind pinned_staging
  std::int64_t allocations = 0;  ///< recorded now, of both kinds
  bool operator==(const MemoryBalance&) const noexcept = default;
};

/// Reads it. Waits for nothing. Returns what Device::memory_info returns.
Result<MemoryBalance> read_balance(const Device& device);

/// Four checks, one a figure: `after` must be `before`. The driver's free bytes may differ by
/// `tolerance_bytes`, which is for others on the same machine.
void expect_same(ScenarioReport& report, std::string_view when, const MemoryBalance& before,
                 const MemoryBalance& after, std::int64_t tolerance_bytes = 0);

/// A refusal as it has to be.
struct ExpectedRefusal {
  std::string name;                  ///< of its figures, snake_case
  std::int64_t required_bytes = 0;   ///< that the status must name
  std::int64_t held_bytes = 0;       ///< that the call itself takes first, and gives back
  std::int64_t tolerance_bytes = 0;  ///< of what the driver says: rounding, others
};

/// Makes the call and adds figures and checks: insufficient_vram naming what was required and what
/// was available (the driver's free bytes less `held_bytes`, and less than required), and nothing
/// else changed. Returns what read_balance returns.
Status expect_refused(ScenarioReport& report, const Device& device, const ExpectedRefusal& expected,
                      const std::function<Status()>& call);

}  // namespace kvarena::replay::pressure
