#include "tools/pressure/neighbour_command.hpp"

#include "scenarios/neighbour.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <iostream>

namespace kvarena::tools {
namespace {

constexpr const char* kName = "pressure-neighbour";

}  // namespace

CLI::App* NeighbourCommand::declare(CLI::App& parent) {
  CLI::App* command =
      parent.add_subcommand(kName, "Take and free memory, as lines of standard input say");
  command->group("");
  add_device_option(*command, device_);
  return command;
}

ExitCode NeighbourCommand::run(const Console& console) const {
  const auto opened = open_device(console, device_);
  if (!opened) return ExitCode::environment;
  const bool understood = scenarios::serve_neighbour(*opened->device, std::cin, console.out);
  return understood ? ExitCode::ok : ExitCode::bad_input;
}

std::vector<std::string> neighbour_command(const Console& console, const OpenedDevice& opened) {
  if (console.program.empty()) return {};
  const std::string device =
      opened.cuda == nullptr ? "cpu" : fmt::format("cuda:{}", opened.cuda->info().ordinal);
  return {console.program, kName, "--device", device};
}

}  // namespace kvarena::tools
