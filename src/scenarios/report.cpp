#include "scenarios/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvarena::scenarios {

bool ScenarioReport::passed() const noexcept {
  return skipped.empty() && !ended && !checks.empty() &&
         std::all_of(checks.begin(), checks.end(), [](const Check& c) { return c.held; });
}

void ScenarioReport::add(std::string figure, Figure::Value value) {
  figures.push_back({std::move(figure), std::move(value)});
}

bool ScenarioReport::expect(std::string what, std::string expected, std::string seen, bool held) {
  checks.push_back({std::move(what), std::move(expected), std::move(seen), held});
  return held;
}
bool ScenarioReport::expect_equal(std::string what, std::int64_t expected, std::int64_t seen) {
  return expect(std::move(what), fmt::format("{}", expected), fmt::format("{}", seen),
                seen == expected);
}
bool ScenarioReport::expect_at_most(std::string what, std::int64_t limit, std::int64_t seen) {
  return expect(std::move(what), fmt::format("at most {}", limit), fmt::format("{}", seen),
                seen <= limit);
}
bool ScenarioReport::expect_at_most(std::string what, double limit, double seen) {
  return expect(std::move(what), fmt::format("at most {:.3g}", limit), fmt::format("{:.3g}", seen),
                seen <= limit);
}
bool ScenarioReport::expect_at_least(std::string what, std::int64_t least, std::int64_t seen) {
  return expect(std::move(what), fmt::format("at least {}", least), fmt::format("{}", seen),
                seen >= least);
}
bool ScenarioReport::expect_same(std::string what, std::string expected, std::string seen) {
  const bool held = expected == seen;
  return expect(std::move(what), std::move(expected), std::move(seen), held);
}

}  // namespace kvarena::scenarios
