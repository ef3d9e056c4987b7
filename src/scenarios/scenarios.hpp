#pragma once

/// @file
/// The pressure scenarios, one source file each. A scenario makes what it needs on the device,
/// writes figures and checks into its report, and leaves nothing behind. What it returns is why it
/// could not come to its end, which fails it too.

#include "replay/failure.hpp"
#include "scenarios/pressure_context.hpp"

#include <span>
#include <string_view>

namespace kvarena::replay::pressure {

/// A scenario as the command line knows it.
struct Scenario {
  std::string_view name;
  std::string_view title;
  MaybeFailure (*run)(const PressureContext& context, ScenarioReport& report);
  /// Free bytes of the device with which it comes to its end. Returns what cache_footprint returns.
  Result<std::int64_t> (*required_bytes)(const PressureContext& context);
};

/// The longest sequence the model was made for, and what is refused past it.
Scenario maximum_context();
/// Memory and blocks while one sequence grows.
Scenario growth();
/// The device filled to the last block that fits.
Scenario near_full();
/// Budgets too small for weights, a sequence, the arena; instances until no more fits.
Scenario allocation_failure();
/// Loading and unloading, creating and destroying, over and over.
Scenario leaks();
/// Batches, as many as fit, and more than fit.
Scenario concurrency();
/// A million tokens with turnover.
Scenario long_generation();
/// A process that takes and frees memory meanwhile.
Scenario neighbours();

/// All of them, in the order in which they run.
std::span<const Scenario> scenarios();

}  // namespace kvarena::replay::pressure
