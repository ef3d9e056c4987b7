#include "tools/command_line.hpp"

#include "tools/bench_command.hpp"
#include "tools/config_command.hpp"
#include "tools/configuration/config_error.hpp"
#include "tools/configuration/configuration.hpp"
#include "tools/devices_command.hpp"
#include "tools/monitor/monitor_command.hpp"
#include "tools/plan/plan_command.hpp"
#include "tools/pressure/neighbour_command.hpp"
#include "tools/pressure/pressure_command.hpp"
#include "tools/replay/replay_command.hpp"
#include "tools/shapes_command.hpp"

#include "kvarena/base/version.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

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
  kvarena monitor --url http://127.0.0.1:15858     watch an engine's health, memory and blocks
  kvarena config show --origin                    every option's value, and where it came from
  kvarena COMMAND --help                          the options of one command, with examples

Options may also be set in kvarena.toml and KVARENA_* variables: 'kvarena config show --help'.

Exit codes: 0 done; 1 a check failed; 2 wrong usage; 3 does not fit into memory; 4 bad input file;
5 the operating system refused, or a bug. Data goes to standard output, messages to standard error.
)";

/// A command that may be chosen.
struct Command {
  const CLI::App* app;
  std::function<ExitCode()> run;
};

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

/// The code to end with at once, or nothing: then a command is to be run.
std::optional<ExitCode> parse(CLI::App& app, int argc, const char* const* argv,
                              const Console& console) {
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
  } catch (const ConfigError& error) {
    console.error(error.what(), error.expected(), error.advice());
    return error.code();
  }
  return std::nullopt;
}

/// What commands refuse together with a choice, where excludes() cannot say it.
void exclude_choices(CLI::App& app, Configuration& configuration) {
  CLI::App& replay = *app.get_subcommand("replay");
  const CLI::Option& clock = *replay.get_option("--clock");
  configuration.exclude_choice(*replay.get_option("--gpu"), clock, {"step", "linear"});
  configuration.exclude_choice(*replay.get_option("--prefill-us"), clock, {"roofline"});
  configuration.exclude_choice(*replay.get_option("--decode-us"), clock, {"roofline"});
  configuration.exclude_choice(*replay.get_option("--device"), *replay.get_option("--attention"),
                               {"off"});
}

ExitCode parse_and_run(int argc, const char* const* argv, Console& console,
                       const ConfigSources& sources) {
  CLI::App app{"kvarena: a paged KV-cache memory manager for engines that serve language models",
               "kvarena"};
  app.set_version_flag("--version", "kvarena " KVARENA_VERSION_STRING,
                       "Print the version and exit");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  app.get_formatter()->column_width(28);
  Configuration configuration(console, sources);
  configuration.declare(app);
  bool no_color = false;
  app.add_flag("--no-color", no_color, "No colours (also: NO_COLOR set in the environment)");
  app.add_flag("--quiet,-q", console.quiet, "Only errors, warnings and the data asked for");

  ConfigCommand config(configuration);
  ReplayCommand replay;
  ShapesCommand shapes;
  DevicesCommand devices;
  BenchCommand bench;
  MonitorCommand monitor;
  PlanCommand plan;
  PressureCommand pressure;
  NeighbourCommand neighbour;
  const std::vector<Command> commands = {
      {replay.declare(app), [&] { return replay.run(console); }},
      {devices.declare(app), [&] { return devices.run(console); }},
      {bench.declare(app), [&] { return bench.run(console); }},
      {monitor.declare(app), [&] { return monitor.run(console); }},
      {plan.declare(app), [&] { return plan.run(console); }},
      {pressure.declare(app), [&] { return pressure.run(console); }},
      {neighbour.declare(app), [&] { return neighbour.run(console); }},
      {shapes.declare(app), [&] { return shapes.run(console); }},
      {config.declare(app), [&] { return config.run(console); }},
  };
  exclude_choices(app, configuration);
  if (const auto ended = parse(app, argc, argv, console)) return *ended;
  if (no_color) console.color = false;
  const auto chosen = std::find_if(commands.begin(), commands.end(),
                                   [](const Command& command) { return command.app->parsed(); });
  const ExitCode code = chosen->run();
  if (code == ExitCode::usage) console.err << configuration.remark() << std::flush;
  return code;
}

}  // namespace

ExitCode run_command_line(int argc, const char* const* argv, Console& console,
                          const ConfigSources& sources) noexcept {
  try {
    return parse_and_run(argc, argv, console, sources);
  } catch (const std::exception& error) {
    console.error(fmt::format("unexpected: {}", error.what()), "",
                  "this is a bug in kvarena, or the machine is out of memory; please report it");
  }
  return ExitCode::environment;
}

}  // namespace kvarena::tools
