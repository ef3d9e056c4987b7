#pragma once

/// @file
/// The kvarena command as a function of its arguments and streams, so that tests call it.

#include "tools/configuration/config_sources.hpp"
#include "tools/console.hpp"
#include "tools/exit_codes.hpp"

namespace kvarena::tools {

/// Parses the arguments, runs the command they name and returns the exit code. `sources` may have
/// values for options that are not among the arguments. Data goes to `console.out`, messages to
/// `console.err`. Never throws.
ExitCode run_command_line(int argc, const char* const* argv, Console& console,
                          const ConfigSources& sources = {}) noexcept;

}  // namespace kvarena::tools
