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

/// 1. The longest sequence the model was made for, and what is refused past it.
MaybeFailure run_maximum_context(const PressureContext& context, ScenarioReport& report);
/// 2. Memory and blocks while one sequence grows.
MaybeFailure run_growth(const PressureContext& context, ScenarioReport& report);
/// 3. The device filled to the last block that fits.
MaybeFailure run_near_full(const PressureContext& context, ScenarioReport& report);
/// 4. Budgets too small for weights, a sequence, the arena; instances until no more fits.
MaybeFailure run_allocation_failure(const PressureContext& context, ScenarioReport& report);
/// 5. Loading and unloading, creating and destroying, over and over.
MaybeFailure run_leaks(const PressureContext& context, ScenarioReport& report);
/// 6. Batches, as many as fit, and more than fit.
MaybeFailure run_concurrency(const PressureContext& context, ScenarioReport& report);
/// 7. A million tokens with turnover.
MaybeFailure run_long_generation(const PressureContext& context, ScenarioReport& report);
/// 8. A process that takes and frees memory meanwhile.
MaybeFailure run_neighbours(const PressureContext& context, ScenarioReport& report);

/// A scenario as the command line knows it.
struct Scenario {
  std::string_view name;
  std::string_view title;
  MaybeFailure (*run)(const PressureContext& context, ScenarioReport& report);
};

/// All of them, in the order in which they run.
std::span<const Scenario> scenarios() noexcept;

}  // namespace kvarena::replay::pressure
