#pragma once

/// @file
/// `kvarena pressure-neighbour`: the process beside `kvarena pressure` that takes and frees memory.
/// Not for people; the help does not name it.

#include "tools/console.hpp"
#include "tools/device_option.hpp"
#include "tools/exit_codes.hpp"

#include <string>
#include <vector>

namespace kvarena::tools {

/// The command's options and its work.
class NeighbourCommand {
 public:
  /// Declares the command below `parent` and returns it.
  CLI::App* declare(CLI::App& parent);
  /// Serves the lines of standard input until they end.
  ExitCode run(const Console& console) const;

 private:
  DeviceChoice device_;
};

/// Returns the program and arguments that run this executable as a neighbour on the device; empty
/// when the console does not know the executable.
std::vector<std::string> neighbour_command(const Console& console, const OpenedDevice& opened);

}  // namespace kvarena::tools
