#include "scenarios/pressure.hpp"

#include "scenarios/faulty_memory_device.hpp"
#include "scenarios/pressure_instance.hpp"
#include "scenarios/scenarios.hpp"
#include "verify/device_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvarena::replay::pressure {
namespace {

bool is_chosen(const PressureOptions& options, std::string_view name) {
  const auto& chosen = options.scenarios;
  return chosen.empty() || std::find(chosen.begin(), chosen.end(), name) != chosen.end();
}

MaybeFailure check_options(const PressureOptions& options) {
  if (options.fault != PressureFault::none && options.device->kind() != DeviceKind::host) {
    return ReplayFailure{ReplayEnd::bad_options, "a fault cannot be planted on a GPU",
                         "a host device", "leave out --fault, or give --device cpu"};
  }
  for (const std::string& name : options.scenarios) {
    const bool known =
        std::ranges::any_of(scenarios(), [&name](const Scenario& s) { return s.name == name; });
    if (!known) {
      return ReplayFailure{ReplayEnd::bad_options, fmt::format("there is no scenario {}", name),
                           "one of those that --help lists", "change --scenario"};
    }
  }
  return std::nullopt;
}

/// The scenario that needs most must come to its end, or nothing runs.
MaybeFailure check_fit(const PressureOptions& options, std::int64_t free_bytes,
                       PressureOutcome& outcome) {
  std::string_view neediest;
  for (const Scenario& scenario : scenarios()) {
    if (!is_chosen(options, scenario.name)) continue;
    const auto bytes = scenario.required_bytes({.options = options, .scenario = scenario.name});
    if (!bytes) return unexpected("required_bytes", bytes.status());
    if (*bytes <= outcome.required_bytes) continue;
    outcome.required_bytes = *bytes;
    neediest = scenario.name;
  }
  if (outcome.required_bytes <= free_bytes) return std::nullopt;
  return ReplayFailure{
      ReplayEnd::does_not_fit,
      fmt::format("{} has {} free; {} with {} needs {}, {} of them weights", options.device->name(),
                  bytes_text(free_bytes), neediest, options.model.name,
                  bytes_text(outcome.required_bytes), bytes_text(options.model.weights_bytes)),
      fmt::format("{} bytes free", outcome.required_bytes),
      "free memory, or choose a smaller model"};
}

/// CUDA: takes away what is free past `memory_bytes`.
MaybeFailure limit_memory(const PressureOptions& options, verify::DeviceMemory& taken) {
  if (!options.memory_bytes || options.device->kind() == DeviceKind::host) return std::nullopt;
  const Result<MemoryInfo> memory = options.device->memory_info();
  if (!memory) return unexpected("memory_info", memory.status());
  const std::int64_t surplus =
      static_cast<std::int64_t>(memory->free_bytes) - *options.memory_bytes;
  if (surplus <= 0) return std::nullopt;
  auto made = verify::DeviceMemory::create(*options.device, surplus, "pressure: past --memory");
  if (!made) return unexpected("allocate", made.status());
  taken = std::move(*made);
  return std::nullopt;
}

ScenarioReport run_scenario(const Scenario& scenario, const PressureOptions& options,
                            PressureSink* sink) {
  ScenarioReport report;
  report.name = scenario.name;
  report.title = scenario.title;
  PressureOptions its = options;
  std::optional<FaultyMemoryDevice> faulty;  // of this scenario alone: it ends with all it lost
  if (its.fault != PressureFault::none) its.device = &faulty.emplace(*its.device, its.fault);
  const PressureContext context{.options = its, .scenario = scenario.name, .sink = sink};
  if (sink != nullptr) sink->on_begin(scenario.name, scenario.title);
  const std::int64_t start_ns = context.now_ns();
  report.ended = scenario.run(context, report);
  report.seconds = static_cast<double>(context.now_ns() - start_ns) / 1e9;
  if (sink != nullptr) sink->on_end(report);
  return report;
}

void put(const ReplayFailure& failure, PressureOutcome& outcome) {
  outcome.end = failure.end;
  outcome.happened = failure.happened;
  outcome.expected = failure.expected;
  outcome.advice = failure.advice;
}

MaybeFailure run_all(const PressureOptions& options, PressureSink* sink, PressureOutcome& outcome) {
  if (auto failure = check_options(options)) return failure;
  verify::DeviceMemory taken;
  if (auto failure = limit_memory(options, taken)) return failure;
  const Result<MemoryInfo> memory = options.device->memory_info();
  if (!memory) return unexpected("memory_info", memory.status());
  if (auto failure = check_fit(options, static_cast<std::int64_t>(memory->free_bytes), outcome)) {
    return failure;
  }
  PressureReport& report = outcome.report;
  report.model = options.model.name;
  report.device = options.device->name();
  report.total_bytes = static_cast<std::int64_t>(memory->total_bytes);
  report.free_bytes = static_cast<std::int64_t>(memory->free_bytes);
  outcome.has_report = true;
  for (const Scenario& scenario : scenarios()) {
    if (is_chosen(options, scenario.name)) {
      report.scenarios.push_back(run_scenario(scenario, options, sink));
    }
  }
  if (report.num_failed() == 0) return std::nullopt;
  return ReplayFailure{
      ReplayEnd::check_failed,
      fmt::format("{} of {} scenarios failed", report.num_failed(), report.scenarios.size()),
      "every check to hold", "the report says which did not"};
}

}  // namespace

std::span<const Scenario> scenarios() {
  static const Scenario all[] = {maximum_context(),    growth(),    near_full(),
                                 allocation_failure(), leaks(),     concurrency(),
                                 long_generation(),    neighbours()};
  return all;
}

std::int64_t PressureReport::num_failed() const noexcept {
  return std::count_if(scenarios.begin(), scenarios.end(),
                       [](const ScenarioReport& s) { return s.failed(); });
}

PressureOutcome run_pressure(const PressureOptions& options, PressureSink* sink) {
  PressureOutcome outcome;
  const std::int64_t start_ns = options.clock->now_ns();
  if (const auto failure = run_all(options, sink, outcome)) put(*failure, outcome);
  outcome.report.seconds = static_cast<double>(options.clock->now_ns() - start_ns) / 1e9;
  return outcome;
}

}  // namespace kvarena::replay::pressure
