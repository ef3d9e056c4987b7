#include "scenarios/suite.hpp"

#include "device/memory_report.hpp"
#include "scenarios/engine.hpp"
#include "verify/device_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvarena::scenarios {
namespace {

bool is_chosen(const SuiteOptions& options, std::string_view name) {
  const auto& chosen = options.scenarios;
  return chosen.empty() || std::find(chosen.begin(), chosen.end(), name) != chosen.end();
}

MaybeFailure check_options(const SuiteOptions& options) {
  std::vector<std::string_view> names;
  for (const Scenario& scenario : scenarios()) names.push_back(scenario.name);
  for (const std::string& name : options.scenarios) {
    if (std::ranges::find(names, name) != names.end()) continue;
    return Failure{RunEnd::bad_options,
                   {.subject = "scenarios",
                    .found = name,
                    .expected = fmt::format("one of {}", fmt::join(names, ", "))}};
  }
  return std::nullopt;
}

/// The scenario that needs most must come to its end, or nothing runs.
MaybeFailure check_fit(const SuiteOptions& options, SuiteOutcome& outcome) {
  std::string_view neediest;
  for (const Scenario& scenario : scenarios()) {
    if (!is_chosen(options, scenario.name)) continue;
    const auto bytes = scenario.required_bytes({.options = options, .scenario = scenario.name});
    if (!bytes) return unexpected("required_bytes", bytes.status());
    if (*bytes <= outcome.required_bytes) continue;
    outcome.required_bytes = *bytes;
    neediest = scenario.name;
  }
  if (outcome.required_bytes <= outcome.report.free_bytes) return std::nullopt;
  const auto text = [](std::int64_t bytes) {
    return bytes_text(static_cast<std::uint64_t>(bytes));
  };
  return Failure{RunEnd::does_not_fit,
                 {.found = fmt::format("{} has {} free", options.device->name(),
                                       text(outcome.report.free_bytes)),
                  .expected = fmt::format("{} for {} of {}, of which {} are weights",
                                          text(outcome.required_bytes), neediest,
                                          options.model.name, text(options.model.weights_bytes)),
                  .advice = "free memory, or choose a smaller model"}};
}

/// CUDA: takes away what is free past `memory_bytes`.
MaybeFailure limit_memory(const SuiteOptions& options, verify::DeviceMemory& taken) {
  if (!options.memory_bytes || options.device->kind() == DeviceKind::host) return std::nullopt;
  const Result<MemoryInfo> memory = options.device->memory_info();
  if (!memory) return unexpected("memory_info", memory.status());
  // A driver takes whole pieces: what is left is at least `memory_bytes`.
  const std::int64_t surplus =
      static_cast<std::int64_t>(memory->free_bytes) - *options.memory_bytes - kDriverPieceBytes + 1;
  if (surplus <= 0) return std::nullopt;
  auto made = verify::DeviceMemory::create(*options.device, surplus, "scenario: past memory_bytes");
  if (!made) return unexpected("allocate", made.status());
  taken = std::move(*made);
  return std::nullopt;
}

ScenarioReport run_scenario(const Scenario& scenario, const SuiteOptions& options,
                            ProgressSink* sink) {
  ScenarioReport report;
  report.name = scenario.name;
  report.title = scenario.title;
  const ScenarioContext context{.options = options, .scenario = scenario.name, .sink = sink};
  if (sink != nullptr) sink->on_begin(scenario.name, scenario.title);
  const std::int64_t start_ns = context.now_ns();
  report.ended = scenario.run(context, report);
  // A signal may end the neighbour, too, or cut off the work behind a check: both look like
  // failures.
  if (is_stopped(options.stop) && report.failed()) report.ended = interruption();
  report.seconds = static_cast<double>(context.now_ns() - start_ns) / 1e9;
  if (sink != nullptr) sink->on_end(report);
  return report;
}

MaybeFailure run_chosen(const SuiteOptions& options, ProgressSink* sink, SuiteReport& report) {
  for (const Scenario& scenario : scenarios()) {
    if (!is_chosen(options, scenario.name)) continue;
    if (is_stopped(options.stop)) {
      report.not_run.emplace_back(scenario.name);
    } else {
      report.scenarios.push_back(run_scenario(scenario, options, sink));
    }
  }
  const auto count = [&report](bool (ScenarioReport::*is)() const noexcept) {
    return std::ranges::count_if(report.scenarios, is);
  };
  const auto cut = count(&ScenarioReport::interrupted);
  if (cut > 0 || !report.not_run.empty()) {
    return Failure{RunEnd::interrupted,
                   {.found = fmt::format("interrupted after {} of {} scenarios",
                                         std::ssize(report.scenarios) - cut,
                                         report.scenarios.size() + report.not_run.size()),
                    .advice = "the report has what was finished; run the others again"}};
  }
  const auto failed = count(&ScenarioReport::failed);
  if (failed == 0) return std::nullopt;
  return Failure{
      RunEnd::check_failed,
      {.found = fmt::format("{} of {} scenarios failed", failed, report.scenarios.size()),
       .expected = "every check to hold",
       .advice = "the report says which did not"}};
}

MaybeFailure run_all(const SuiteOptions& options, ProgressSink* sink, SuiteOutcome& outcome) {
  if (auto failure = check_options(options)) return failure;
  verify::DeviceMemory taken;
  if (auto failure = limit_memory(options, taken)) return failure;
  const Result<MemoryInfo> memory = options.device->memory_info();
  if (!memory) return unexpected("memory_info", memory.status());
  outcome.report.model = options.model.name;
  outcome.report.device = options.device->name();
  outcome.report.total_bytes = static_cast<std::int64_t>(memory->total_bytes);
  outcome.report.free_bytes = static_cast<std::int64_t>(memory->free_bytes);
  if (auto failure = check_fit(options, outcome)) return failure;
  outcome.has_report = true;
  return run_chosen(options, sink, outcome.report);
}

}  // namespace

std::span<const Scenario> scenarios() {
  static const Scenario all[] = {maximum_context(),    growth(), near_full(),
                                 allocation_failure(), leaks(),  concurrency(),
                                 long_generation(),    groups(), neighbours()};
  return all;
}

SuiteOutcome run_suite(const SuiteOptions& options, ProgressSink* sink) {
  SuiteOutcome outcome;
  const std::int64_t start_ns = options.clock->now_ns();
  outcome.failure = run_all(options, sink, outcome);
  outcome.report.seconds = static_cast<double>(options.clock->now_ns() - start_ns) / 1e9;
  return outcome;
}

}  // namespace kvarena::scenarios
