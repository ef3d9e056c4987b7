#pragma once

/// @file
/// Turns the end of a replay or of pressure scenarios into an exit code.

#include "tools/exit_codes.hpp"

#include "replay/replay_report.hpp"

namespace kvarena::tools {

/// The command's exit code.
constexpr ExitCode exit_code_of(replay::ReplayEnd end) noexcept {
  using enum replay::ReplayEnd;
  switch (end) {
    case completed: return ExitCode::ok;
    case check_failed: return ExitCode::check_failed;
    case bad_options: return ExitCode::usage;
    case does_not_fit: return ExitCode::does_not_fit;
    case bad_input: return ExitCode::bad_input;
    case interrupted: return ExitCode::interrupted;
    case environment: break;
  }
  return ExitCode::environment;
}

}  // namespace kvarena::tools
