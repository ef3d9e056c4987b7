#include "tools/pressure/pressure_output.hpp"

#include "tools/option_values.hpp"
#include "tools/result_file.hpp"

#include "kvarena/base/version.hpp"
#include "kvarena/device/memory_drift.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <type_traits>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;
using scenarios::Check;
using scenarios::Figure;
using scenarios::FigureTable;
using scenarios::ScenarioReport;
using scenarios::ServedModel;
using scenarios::SuiteOptions;
using scenarios::SuiteOutcome;
using scenarios::SuiteReport;

/// Why it was skipped or has ended early, or the first check that did not hold.
std::string remark_of(const ScenarioReport& scenario) {
  if (!scenario.skipped.empty()) return scenario.skipped;
  if (scenario.interrupted()) return "stopped before its end";
  if (scenario.ended) return "ended early: " + headline(scenario.ended->why);
  for (const Check& check : scenario.checks) {
    if (check.held) continue;
    return fmt::format("{}: expected {}, seen {}", check.what, check.expected, check.seen);
  }
  return fmt::format("{} checks", scenario.checks.size());
}

// ---- JSON --------------------------------------------------------------------------------------

Json json_of(const FigureTable& table) {
  Json rows = Json::array();
  for (const auto& row : table.rows) {
    Json object = Json::object();
    for (std::size_t i = 0; i < row.size(); ++i) object[table.columns[i]] = row[i];
    rows.push_back(std::move(object));
  }
  return rows;
}

Json json_of(const Figure& figure) {
  return std::visit(
      [](const auto& value) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, FigureTable>) {
          return json_of(value);
        } else {
          return value;
        }
      },
      figure.value);
}

Json json_of(const scenarios::MaybeFailure& ended) {
  if (!ended) return nullptr;
  return {{"end", name_of(ended->end)},
          {"happened", headline(ended->why)},
          {"expected", ended->why.expected},
          {"advice", ended->why.advice}};
}

Json json_of(const ScenarioReport& scenario) {
  Json figures = Json::object();
  for (const Figure& figure : scenario.figures) figures[figure.name] = json_of(figure);
  Json checks = Json::array();
  for (const Check& check : scenario.checks) {
    checks.push_back({{"what", check.what},
                      {"expected", check.expected},
                      {"seen", check.seen},
                      {"held", check.held}});
  }
  const bool ran = scenario.skipped.empty() && !scenario.interrupted();
  return {{"name", scenario.name},
          {"title", scenario.title},
          {"passed", ran ? Json(scenario.passed()) : Json(nullptr)},
          {"skipped", scenario.skipped.empty() ? Json(nullptr) : Json(scenario.skipped)},
          {"ended", json_of(scenario.ended)},
          {"seconds", scenario.seconds},
          {"figures", std::move(figures)},
          {"checks", std::move(checks)}};
}

Json json_of(const ServedModel& model) {
  return {{"name", model.name},
          {"num_layers", model.shape.num_layers},
          {"num_q_heads", model.num_q_heads},
          {"num_kv_heads", model.shape.num_kv_heads},
          {"head_dim", model.shape.head_dim_k},
          {"dtype", name_of(model.shape.dtype)},
          {"block_size", model.shape.block_size_tokens},
          {"max_context_tokens", model.max_context_tokens},
          {"weights_bytes", model.weights_bytes}};
}

// ---- Markdown ----------------------------------------------------------------------------------

/// Cells must not end their row, and keep their lines.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "<br>";
    } else {
      if (c == '|') out += '\\';
      out += c;
    }
  }
  return out;
}

void append_table(std::string& out, const FigureTable& table) {
  out += fmt::format("| {} |\n|{}\n", fmt::join(table.columns, " | "), [&table] {
    std::string rule;
    for (std::size_t i = 0; i < table.columns.size(); ++i) rule += " ---: |";
    return rule;
  }());
  for (const auto& row : table.rows) {
    out += '|';
    for (const std::int64_t value : row) out += fmt::format(" {} |", grouped(value));
    out += '\n';
  }
}

std::string value_text(const Figure& figure) {
  if (const auto* whole = std::get_if<std::int64_t>(&figure.value)) return grouped(*whole);
  if (const auto* number = std::get_if<double>(&figure.value)) {
    return fmt::format("{:.6g}", *number);
  }
  return cell(std::get<std::string>(figure.value));
}

void append_figures(std::string& out, const std::vector<Figure>& figures) {
  const auto is_table = [](const Figure& f) {
    return std::holds_alternative<FigureTable>(f.value);
  };
  if (!std::all_of(figures.begin(), figures.end(), is_table)) {
    out += "| figure | value |\n| --- | ---: |\n";
    for (const Figure& figure : figures) {
      if (!is_table(figure)) {
        out += fmt::format("| {} | {} |\n", figure.name, value_text(figure));
      }
    }
    out += '\n';
  }
  for (const Figure& figure : figures) {
    if (!is_table(figure)) continue;
    out += fmt::format("{}:\n\n", figure.name);
    append_table(out, std::get<FigureTable>(figure.value));
    out += '\n';
  }
}

void append_origin(std::string& out, const PressureOrigin& origin, const SuiteOptions& options) {
  out += fmt::format("kvarena {}; driver {}; `--memory` {}; `--seed {}`; begun {}.\n\n",
                     KVARENA_VERSION_STRING,
                     origin.driver_version.empty() ? "none" : origin.driver_version,
                     options.memory_bytes ? grouped(*options.memory_bytes) + " bytes" : "not given",
                     options.seed, origin.started_utc);
}

std::string heading_of(const ScenarioReport& scenario) {
  return fmt::format("{}: {}", scenario.name, verdict_of(scenario));
}

/// What a link to a heading of letters, digits, "-", ":" and spaces is called.
std::string anchor_of(std::string_view heading) {
  std::string anchor;
  for (const char c : heading) {
    if (c == ':') continue;
    anchor += c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return anchor;
}

void append_end(std::string& out, const scenarios::Failure& ended) {
  out += fmt::format("Ended early ({}): {}\n\n", name_of(ended.end), headline(ended.why));
  if (!ended.why.expected.empty()) out += fmt::format("Expected: {}\n\n", ended.why.expected);
  if (!ended.why.advice.empty()) out += fmt::format("To do: {}\n\n", ended.why.advice);
}

void append_scenario(std::string& out, const ScenarioReport& scenario) {
  out += fmt::format("## {}\n\n{} in {:.1f} s.\n\n", heading_of(scenario), scenario.title,
                     scenario.seconds);
  if (!scenario.skipped.empty()) out += fmt::format("Skipped: {}\n\n", scenario.skipped);
  if (scenario.ended) append_end(out, *scenario.ended);
  append_figures(out, scenario.figures);
  if (scenario.checks.empty()) return;
  out += "| check | expected | seen | held |\n| --- | --- | --- | --- |\n";
  for (const Check& check : scenario.checks) {
    out += fmt::format("| {} | {} | {} | {} |\n", cell(check.what), cell(check.expected),
                       cell(check.seen), check.held ? "yes" : "**no**");
  }
  out += '\n';
}

// ---- files -------------------------------------------------------------------------------------

constexpr const char* kReports[] = {"report.md", "report.json"};

ExitCode not_written(const Console& console, const std::string& folder,
                     const std::error_code& error, const std::filesystem::path& left_at = {}) {
  console.output_error(fmt::format("--out {}: {}", folder, error.message()), "a folder to write to",
                       left_at.empty() ? "check its permissions and the disk"
                                       : fmt::format("the report is in {}", left_at.string()));
  return ExitCode::environment;
}

}  // namespace

std::string_view verdict_of(const ScenarioReport& scenario) {
  if (!scenario.skipped.empty()) return "skipped";
  if (scenario.interrupted()) return "interrupted";
  return scenario.passed() ? "passed" : "FAILED";
}

PressureOrigin origin_now(const Device& device) {
  PressureOrigin origin{.started_utc = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr))),
                        .driver_version = {}};
  if (const auto nvml = nvml_memory(device)) origin.driver_version = nvml->driver_version;
  return origin;
}

std::string summary_of(const Console& console, const std::ostream& stream,
                       const SuiteReport& report) {
  std::string out = fmt::format("{} on {}\n", report.model, report.device);
  for (const ScenarioReport& scenario : report.scenarios) {
    const auto color = !scenario.skipped.empty() ? console.yellow(stream)
                       : scenario.interrupted()  ? console.yellow(stream)
                       : scenario.passed()       ? console.green(stream)
                                                 : console.red(stream);
    out += fmt::format("  {:<20} {}{:<8}{} {:>7.1f} s  {}\n", scenario.name, color,
                       verdict_of(scenario), console.plain(stream), scenario.seconds,
                       remark_of(scenario));
  }
  return out;
}

Json json_of(const PressureOrigin& origin, const SuiteOptions& options,
             const SuiteOutcome& outcome) {
  const SuiteReport& report = outcome.report;
  Json scenarios = Json::array();
  for (const ScenarioReport& scenario : report.scenarios) scenarios.push_back(json_of(scenario));
  const bool ok = !outcome.failure;
  return {{"schema_version", 2},
          {"ok", ok},
          {"failure", ok ? Json(nullptr) : Json(headline(outcome.failure->why))},
          {"interrupted", !ok && outcome.failure->end == scenarios::RunEnd::interrupted},
          {"kvarena_version", KVARENA_VERSION_STRING},
          {"started_utc", origin.started_utc},
          {"driver_version",
           origin.driver_version.empty() ? Json(nullptr) : Json(origin.driver_version)},
          {"model", json_of(options.model)},
          {"device", report.device},
          {"total_bytes", report.total_bytes},
          {"free_bytes", report.free_bytes},
          {"memory_bytes", options.memory_bytes ? Json(*options.memory_bytes) : Json(nullptr)},
          {"seed", options.seed},
          {"seconds", report.seconds},
          {"scenarios", std::move(scenarios)},
          {"not_run", report.not_run}};
}

std::string markdown_of(const PressureOrigin& origin, const SuiteOptions& options,
                        const SuiteOutcome& outcome) {
  const SuiteReport& report = outcome.report;
  std::string out = fmt::format(
      "# Memory pressure: {} on {}\n\n{} bytes of weights; {} of {} bytes of the device were free. "
      "All of it took {:.1f} s.\n\n",
      report.model, report.device, grouped(options.model.weights_bytes), grouped(report.free_bytes),
      grouped(report.total_bytes), report.seconds);
  append_origin(out, origin, options);
  if (outcome.failure && outcome.failure->end == scenarios::RunEnd::interrupted) {
    out += fmt::format(
        "**{}.** Not run: {}.\n\n", headline(outcome.failure->why),
        report.not_run.empty() ? "none" : fmt::format("{}", fmt::join(report.not_run, ", ")));
  }
  out += "| scenario | verdict | seconds | |\n| --- | --- | ---: | --- |\n";
  for (const ScenarioReport& scenario : report.scenarios) {
    out += fmt::format("| [{}](#{}) | {} | {:.1f} | {} |\n", scenario.name,
                       anchor_of(heading_of(scenario)), verdict_of(scenario), scenario.seconds,
                       cell(remark_of(scenario)));
  }
  out += '\n';
  for (const ScenarioReport& scenario : report.scenarios) append_scenario(out, scenario);
  if (out.ends_with("\n\n")) out.pop_back();
  return out;
}

ExitCode probe_reports(const Console& console, const std::string& folder, const std::string& json,
                       ResultFolder& made) {
  if (folder.empty()) return ExitCode::ok;
  std::error_code error = made.make(folder);
  for (const char* name : kReports) {
    if (!error) error = probe_write(std::filesystem::path(folder) / name);
  }
  if (error) return not_written(console, folder, error);
  const bool is_clear = are_different_files(console, {{"--json", json},
                                                      {"--out", folder + "/" + kReports[0]},
                                                      {"--out", folder + "/" + kReports[1]}});
  return is_clear ? ExitCode::ok : ExitCode::usage;
}

ExitCode write_reports(const Console& console, const std::string& folder,
                       const PressureOrigin& origin, const SuiteOptions& options,
                       const SuiteOutcome& outcome) {
  if (folder.empty()) return ExitCode::ok;
  const std::filesystem::path path(folder);
  const std::string reports[] = {markdown_of(origin, options, outcome),
                                 json_text(json_of(origin, options, outcome))};
  std::error_code error;
  std::filesystem::create_directories(path, error);
  ExitCode code = error ? not_written(console, folder, error) : ExitCode::ok;
  for (int n = 0; n < 2 && !error; ++n) {
    std::filesystem::path left_at;
    const std::error_code failed = write_whole(path / kReports[n], reports[n], &left_at);
    if (failed) code = not_written(console, folder, failed, left_at);
  }
  return code;
}

}  // namespace kvarena::tools
