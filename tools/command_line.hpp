#pragma once

/// @file
/// The kvarena command as a function of its arguments and streams, so that tests call it, and its
/// commands. Each declares its options below the root and runs when it is chosen.

#include "tools/configuration/configuration.hpp"
#include "tools/console.hpp"

#include <functional>
#include <memory>

namespace CLI {
class App;
}

namespace kvarena::tools {

class Configuration;

/// Parses the arguments, runs the command they name and returns the exit code. `sources` may have
/// values for options that are not among the arguments. Data goes to `console.out`, messages to
/// `console.err`. Never throws.
ExitCode run_command_line(int argc, const char* const* argv, Console& console,
                          const ConfigSources& sources = {}) noexcept;

/// A command that may be chosen.
struct Command {
  const CLI::App* app = nullptr;
  std::function<ExitCode(const Console&)> run;
};

/// Makes a command of a class with its options and its work: `declare` declares it below `parent`
/// and returns it, `run` does the work. The command owns the object.
template <class Work, class... Arguments>
Command make_command(CLI::App& parent, Arguments&... arguments) {
  auto work = std::make_shared<Work>(arguments...);
  const CLI::App* app = work->declare(parent);
  return {app, [work](const Console& console) { return work->run(console); }};
}

/// `bench attention`: how long decode attention takes on a device, and how long a plain read of the
/// same bytes takes. check_failed when a result is wrong.
Command bench_command(CLI::App& parent);
/// `config show`: the value and the source of every option in `configuration`, as TOML: configured
/// values as settings, defaults as comments. `configuration` must outlive the command.
Command config_command(CLI::App& parent, Configuration& configuration);
/// `devices`: the host and each GPU with its memory, or why there is no GPU, which is no failure.
Command devices_command(CLI::App& parent);
/// `monitor`: a live view of a kvarena process over HTTP, or of a device by its driver.
Command monitor_command(CLI::App& parent);
/// `plan`: how much of a GPU's memory models take, how many requests fit, what limits their number,
/// and which options to set.
Command plan_command(CLI::App& parent);
/// `pressure`: runs the memory of a device to its limits and reports the results.
Command pressure_command(CLI::App& parent);
/// `pressure-neighbour`: the process beside `pressure` that takes and frees memory as the lines of
/// standard input say. Not for people; the help does not name it.
Command neighbour_command(CLI::App& parent);
/// `replay`: serves a request trace through the block manager on a virtual clock.
Command replay_command(CLI::App& parent);
/// `shapes`: bytes of KV per token and per block, for models by name or file, or numbers.
Command shapes_command(CLI::App& parent);

}  // namespace kvarena::tools
