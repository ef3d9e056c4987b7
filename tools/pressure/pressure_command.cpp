#include "tools/pressure/pressure_command.hpp"

#include "tools/json_output.hpp"
#include "tools/option_types.hpp"
#include "tools/pressure/neighbour_command.hpp"
#include "tools/pressure/pressure_output.hpp"
#include "tools/quantity.hpp"
#include "tools/replay/replay_exit_code.hpp"

#include "scenarios/scenarios.hpp"

#include "kvarena/device/host_device.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limits>
#include <map>
#include <string>
#include <vector>

namespace kvarena::tools {
namespace {

using replay::ReplayEnd;
using replay::pressure::PressureFault;
using replay::pressure::PressureSink;
using replay::pressure::ScenarioReport;

constexpr const char* kFooter = R"(
Examples:
  kvarena pressure
      all scenarios with Phi-3-mini on the first GPU, or on the CPU where there is none
  kvarena pressure --device cpu --memory 12GiB --out report
      on the CPU within 12 GiB; report/report.md and report/report.json
  kvarena pressure --scenario growth --scenario leaks --json -
      two of them, as one JSON object
  kvarena pressure --device cuda:0 --model Qwen2.5-0.5B --memory 20GiB
      as if the GPU had 20 GiB free

Scenarios: maximum-context, growth, near-full, allocation-failure, leaks, concurrency,
long-generation, neighbours. docs/cli.md says what each does.
)";

/// A host is shared with others and must not swap: three quarters of what it has available.
std::uint64_t default_host_bytes() { return system_memory_source().available_bytes() / 4 * 3; }

/// For tests, and not in the help: docs/cli.md.
void declare_fault_option(CLI::App& command, PressureFault& fault) {
  const std::map<std::string, PressureFault> faults = {{"none", PressureFault::none},
                                                       {"leak", PressureFault::leak},
                                                       {"byte_count", PressureFault::byte_count},
                                                       {"residency", PressureFault::residency}};
  command.add_option("--fault", fault)->transform(CLI::CheckedTransformer(faults))->group("");
}

/// Lines on standard error as the scenarios go on.
class ProgressLines final : public PressureSink {
 public:
  explicit ProgressLines(const Console& console) : console_(console) {}
  void on_begin(std::string_view name, std::string_view title) override {
    console_.note(fmt::format("{}: {}", name, title));
  }
  void on_progress(std::string_view name, std::string_view what) override {
    console_.note(fmt::format("{}: {}", name, what));
  }
  void on_end(const ScenarioReport& report) override {
    console_.note(
        fmt::format("{}: {} after {:.1f} s", report.name, verdict_of(report), report.seconds));
    if (!report.ended) return;
    console_.error(report.name + ": " + report.ended->happened, report.ended->expected,
                   report.ended->advice);
  }

 private:
  const Console& console_;
};

}  // namespace

CLI::App* PressureCommand::declare(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand(
      "pressure", "Run a device's memory to its limits and check what happens");
  command->footer(kFooter);
  add_device_option(*command, device_);
  add_bytes_option(*command, "--memory", memory_bytes_,
                   "How much of the device's memory to use [default: CPU: three quarters of what "
                   "the machine has available; GPU: all that is free]");
  const std::vector<std::string> models = replay::pressure::pressure_model_names();
  model_ = models.front();
  add_choice_option(*command, "--model", model_, models, "Shape of KV and size of weights")
      ->capture_default_str();
  std::vector<std::string> names;
  for (const auto& scenario : replay::pressure::scenarios()) names.emplace_back(scenario.name);
  command
      ->add_option("--scenario", options_.scenarios,
                   "Only this one; may be given more than once [default: all]")
      ->check(CLI::IsMember(names))
      ->type_name("NAME");
  add_count_option(*command, "--seed", options_.seed, 0, std::numeric_limits<std::int32_t>::max(),
                   "Of lengths and contents")
      ->capture_default_str();
  command->add_option("--out", out_, "Write report.md and report.json into DIR, made where missing")
      ->type_name("DIR");
  declare_json_option(*command, json_);
  declare_fault_option(*command, options_.fault);
  return command;
}

ExitCode PressureCommand::run(const Console& console) {
  // What a run of minutes finds out must not be lost for want of a place to write it to.
  ResultFolder folder;
  if (const ExitCode code = probe_reports(console, out_, folder); code != ExitCode::ok) return code;
  if (const ExitCode code = probe_json(console, json_); code != ExitCode::ok) return code;
  options_.model = *replay::pressure::find_pressure_model(model_);
  const auto host_bytes =
      memory_bytes_ ? static_cast<std::uint64_t>(*memory_bytes_) : default_host_bytes();
  auto opened = open_device(console, device_, host_bytes);
  if (!opened) return ExitCode::environment;
  const std::uint64_t available = system_memory_source().available_bytes();
  if (opened->cuda == nullptr && host_bytes > available) {
    console.error(
        fmt::format("--memory {}: the machine has {} bytes available", host_bytes, available),
        "no more than that", "give less");
    return ExitCode::does_not_fit;
  }
  options_.device = opened->device.get();
  options_.memory_bytes = memory_bytes_;
  options_.neighbour_command = neighbour_command(console, *opened);
  const PressureOrigin origin = origin_now(*options_.device);
  ProgressLines progress(console);
  const auto outcome = replay::pressure::run_pressure(options_, &progress);
  if (outcome.end != ReplayEnd::completed) {
    console.error(outcome.happened, outcome.expected, outcome.advice);
  }
  const ExitCode code = exit_code_of(outcome.end);
  if (!outcome.has_report) return code;
  if (!console.quiet) {
    std::ostream& stream = json_on_stdout(json_) ? console.err : console.out;
    stream << summary_of(console, stream, outcome.report) << std::flush;
  }
  const ExitCode reported = write_reports(console, out_, origin, options_, outcome);
  const ExitCode written = write_json(console, json_, json_of(origin, options_, outcome));
  options_.device = nullptr;
  if (code != ExitCode::ok) return code;
  return reported != ExitCode::ok ? reported : written;
}

}  // namespace kvarena::tools
