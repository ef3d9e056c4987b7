#include "tools/command_line.hpp"
#include "tools/device_option.hpp"
#include "tools/interrupt.hpp"
#include "tools/option_values.hpp"
#include "tools/pressure/pressure_output.hpp"
#include "tools/result_file.hpp"

#include "scenarios/neighbour.hpp"
#include "scenarios/suite.hpp"

#include "kvarena/device/host_device.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

namespace kvarena::tools {
namespace {

using scenarios::ProgressSink;
using scenarios::RunEnd;
using scenarios::ScenarioReport;

constexpr const char* kPressureFooter = R"(
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
long-generation, groups, neighbours. docs/reference/command.md says what each does.
)";

/// A host is shared with others and must not swap: three quarters of what it has available.
std::uint64_t default_host_bytes() { return system_memory_source().available_bytes() / 4 * 3; }

/// What the process itself takes beside the device: the tables and buffers of the largest scenario
/// are 150 MB.
constexpr std::uint64_t kProcessBytes = std::uint64_t{256} << 20;

/// Whether the machine has so many bytes and what the process needs; says what is missing.
bool machine_has(const Console& console, std::uint64_t bytes) {
  const std::uint64_t available = system_memory_source().available_bytes();
  if (bytes <= available && available - bytes >= kProcessBytes) return true;
  const auto text = [](std::uint64_t b) { return human_bytes(static_cast<std::int64_t>(b)); };
  console.error(
      fmt::format("--memory {}: the machine has {} bytes available ({}), and {} of them are for "
                  "the process itself",
                  bytes, available, text(available), text(kProcessBytes)),
      fmt::format("--memory {}MiB or less", (available - std::min(available, kProcessBytes)) >> 20),
      "give less, or free memory");
  return false;
}

/// Lines on standard error as the scenarios go on.
class ProgressLines final : public ProgressSink {
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
    if (!report.ended || report.interrupted()) return;
    const Finding& why = report.ended->why;
    console_.error(fmt::format("{}: {}", report.name, headline(why)), why.expected, why.advice);
  }

 private:
  const Console& console_;
};

constexpr const char* kNeighbour = "pressure-neighbour";

class NeighbourCommand {
 public:
  CLI::App* declare(CLI::App& parent) {
    CLI::App* command =
        parent.add_subcommand(kNeighbour, "Take and free memory, as lines of standard input say");
    command->group("");
    add_device_option(*command, device_);
    return command;
  }
  ExitCode run(const Console& console) const {
    const auto opened = open_device(console, device_);
    if (!opened) return ExitCode::environment;
    const bool understood = scenarios::serve_neighbour(*opened->device, std::cin, console.out);
    return understood ? ExitCode::ok : ExitCode::bad_input;
  }

 private:
  DeviceChoice device_;
};

/// The program and arguments that run this executable as a neighbour on the device; empty when the
/// console does not know the executable.
std::vector<std::string> neighbour_of(const Console& console, const OpenedDevice& opened) {
  if (console.program.empty()) return {};
  const std::string device =
      opened.cuda == nullptr ? "cpu" : fmt::format("cuda:{}", opened.cuda->info().ordinal);
  return {console.program, kNeighbour, "--device", device};
}

class PressureCommand {
 public:
  CLI::App* declare(CLI::App& parent);
  ExitCode run(const Console& console);

 private:
  /// Says why, and returns the exit code.
  ExitCode report_failure(const Console& console, const scenarios::SuiteOutcome& outcome) const;

  scenarios::SuiteOptions options_;
  DeviceChoice device_;
  std::string model_;
  std::optional<std::int64_t> memory_bytes_;
  std::string out_;
  std::string json_;
};

CLI::App* PressureCommand::declare(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand(
      "pressure", "Run a device's memory to its limits and check what happens");
  command->footer(kPressureFooter);
  add_device_option(*command, device_);
  add_bytes_option(*command, "--memory", memory_bytes_,
                   "How much of the device's memory to use [default: CPU: three quarters of what "
                   "the machine has available; GPU: all that is free]");
  const std::vector<std::string> models = scenarios::served_model_names();
  model_ = models.front();
  add_choice_option(*command, "--model", model_, models, "Shape of KV and size of weights");
  std::vector<std::string> names;
  for (const auto& scenario : scenarios::scenarios()) names.emplace_back(scenario.name);
  command
      ->add_option("--scenario", options_.scenarios,
                   "Only this one; may be given more than once [default: all]")
      ->check(CLI::IsMember(names))
      ->type_name("NAME");
  add_count_option(*command, "--seed", options_.seed, 0, std::numeric_limits<std::int32_t>::max(),
                   "Of lengths and contents");
  refuse_empty(command->add_option("--out", out_,
                                   "Write report.md and report.json into DIR, made where missing"))
      ->type_name("DIR");
  declare_json_option(*command, json_);
  return command;
}

ExitCode PressureCommand::run(const Console& console) {
  // What a run of minutes finds out must not be lost for want of a place to write it to.
  ResultFolder folder;
  if (const ExitCode code = probe_reports(console, out_, json_, folder); code != ExitCode::ok) {
    return code;
  }
  if (const ExitCode code = probe_json(console, json_); code != ExitCode::ok) return code;
  options_.model = *scenarios::find_served_model(model_);
  const auto host_bytes =
      memory_bytes_ ? static_cast<std::uint64_t>(*memory_bytes_) : default_host_bytes();
  auto opened = open_device(console, device_, host_bytes);
  if (!opened) return ExitCode::environment;
  if (opened->cuda == nullptr && memory_bytes_ && !machine_has(console, host_bytes)) {
    return ExitCode::does_not_fit;
  }
  options_.device = opened->device.get();
  options_.memory_bytes = memory_bytes_;
  options_.neighbour_command = neighbour_of(console, *opened);
  const PressureOrigin origin = origin_now(*options_.device);
  ProgressLines progress(console);
  const Interrupt interrupt;
  options_.stop = &interrupt.came();
  const auto outcome = scenarios::run_suite(options_, &progress);
  ExitCode code = report_failure(console, outcome);
  if (outcome.has_report) {
    if (!console.quiet) {
      std::ostream& stream = json_on_stdout(json_) ? console.err : console.out;
      stream << summary_of(console, stream, outcome.report) << std::flush;
    }
    const ExitCode reported = write_reports(console, out_, origin, options_, outcome);
    const ExitCode written = write_json(console, json_, json_of(origin, options_, outcome));
    if (code == ExitCode::ok) code = reported != ExitCode::ok ? reported : written;
  }
  options_.device = nullptr;
  options_.stop = nullptr;
  return code;
}

ExitCode PressureCommand::report_failure(const Console& console,
                                         const scenarios::SuiteOutcome& outcome) const {
  if (!outcome.failure) return ExitCode::ok;
  Finding why = outcome.failure->why;
  if (outcome.failure->end == RunEnd::does_not_fit) {
    constexpr std::int64_t kMebibyte = 1 << 20;
    const std::int64_t enough = (outcome.required_bytes + kMebibyte - 1) / kMebibyte;
    const std::int64_t left = outcome.report.free_bytes;
    if (memory_bytes_) {
      why.found = fmt::format("--memory leaves {} bytes ({})", left, human_bytes(left));
    }
    why.advice = fmt::format(
        "give --memory {}MiB or more, free memory, or choose a smaller --model", enough);
  }
  console.error(why);
  return exit_code_of(outcome.failure->end);
}

}  // namespace

Command neighbour_command(CLI::App& parent) { return make_command<NeighbourCommand>(parent); }

Command pressure_command(CLI::App& parent) { return make_command<PressureCommand>(parent); }

}  // namespace kvarena::tools
