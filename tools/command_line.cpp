#include "command_line.hpp"

#include "bench_command.hpp"
#include "devices_command.hpp"
#include "monitor_command.hpp"
#include "neighbour_command.hpp"
#include "plan_command.hpp"
#include "pressure_command.hpp"
#include "replay_command.hpp"
#include "shapes_command.hpp"

#include "kvarena/base/version.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <exception>

namespace kvarena::tools {
namespace {

constexpr const char* kFooter = R"(
Examples:
  kvarena shapes Llama-3.1-8B                     what a token of that model's KV cache takes
  kvarena replay trace.jsonl                      serve a request trace, memory as it needs
  kvarena replay trace.csv --blocks 4096          serve it from a pool of 4096 blocks
  kvarena plan --model Llama-3.1-8B --gpu L40S    how many requests fit, and what to set
  kvarena devices                                 the host and every GPU, or why there is no GPU
  kvarena pressure --device cpu                   memory run to its limits, and what happens
  kvarena bench attention                         how fast decode attention reads its K and V
  kvarena monitor --url http://127.0.0.1:9400     watch an engine's health, memory and blocks
  kvarena COMMAND --help                          the options of one command, with examples

Exit codes: 0 done; 1 a check failed; 2 wrong usage; 3 does not fit into memory; 4 bad input file;
5 the operating system refused, or a bug. Data goes to standard output, messages to standard error.
)";

// CLI11's own words, with the command to ask for help.
ExitCode report_usage(const CLI::App& app, const CLI::ParseError& error, const Console& console) {
  std::string command = "kvarena";
  for (auto chosen = app.get_subcommands(); !chosen.empty();
       chosen = chosen.front()->get_subcommands()) {
    command += " " + chosen.front()->get_name();
  }
  console.error(error.what(), "",
                fmt::format("'{} --help' lists the options with examples", command));
  return ExitCode::usage;
}

ExitCode parse_and_run(int argc, const char* const* argv, Console& console) {
  CLI::App app{"kvarena: a paged KV-cache memory manager for engines that serve language models",
               "kvarena"};
  app.set_version_flag("--version", "kvarena " KVARENA_VERSION_STRING,
                       "Print the version and exit");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  app.get_formatter()->column_width(28);
  bool no_color = false;
  app.add_flag("--no-color", no_color, "No colours (also: NO_COLOR set in the environment)");
  app.add_flag("--quiet,-q", console.quiet, "Only errors, warnings and the data asked for");

  ReplayCommand replay;
  ShapesCommand shapes;
  DevicesCommand devices;
  BenchCommand bench;
  MonitorCommand monitor;
  PlanCommand plan;
  PressureCommand pressure;
  NeighbourCommand neighbour;
  const CLI::App* replay_app = replay.declare(app);
  const CLI::App* devices_app = devices.declare(app);
  const CLI::App* bench_app = bench.declare(app);
  const CLI::App* monitor_app = monitor.declare(app);
  const CLI::App* plan_app = plan.declare(app);
  const CLI::App* pressure_app = pressure.declare(app);
  const CLI::App* neighbour_app = neighbour.declare(app);
  shapes.declare(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    static_cast<void>(app.exit(help, console.out, console.err));
    return ExitCode::ok;
  } catch (const CLI::CallForVersion& version) {
    static_cast<void>(app.exit(version, console.out, console.err));
    return ExitCode::ok;
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error, console);
  }
  if (no_color) console.color = false;
  if (devices_app->parsed()) return devices.run(console);
  if (bench_app->parsed()) return bench.run(console);
  if (monitor_app->parsed()) return monitor.run(console);
  if (plan_app->parsed()) return plan.run(console);
  if (pressure_app->parsed()) return pressure.run(console);
  if (neighbour_app->parsed()) return neighbour.run(console);
  return replay_app->parsed() ? replay.run(console) : shapes.run(console);
}

}  // namespace

ExitCode run_command_line(int argc, const char* const* argv, Console& console) noexcept {
  try {
    return parse_and_run(argc, argv, console);
  } catch (const std::exception& error) {
    console.error(fmt::format("unexpected: {}", error.what()), "",
                  "this is a bug in kvarena, or the machine is out of memory; please report it");
  }
  return ExitCode::environment;
}

}  // namespace kvarena::tools
