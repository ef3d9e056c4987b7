#include "replay/pressure/scenarios.hpp"

namespace kvarena::replay::pressure {

MaybeFailure run_long_generation(const PressureContext&, ScenarioReport& report) {
  report.skipped = "being written";
  return std::nullopt;
}

}  // namespace kvarena::replay::pressure
