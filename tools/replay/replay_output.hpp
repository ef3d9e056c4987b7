#pragma once

/// @file
/// A replay's report as JSON and as text for people. The same figures, from the same struct.

#include "replay/replay_options.hpp"
#include "replay/replay_report.hpp"
#include "tools/console.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace kvarena::tools {

/// One object; docs/reference/command.md describes every field.
nlohmann::ordered_json json_of(const replay::ReplayOptions& options,
                               const replay::ReplayOutcome& outcome);

/// The summary, with colours as `stream` (one of the console's) allows.
std::string summary_of(const Console& console, const std::ostream& stream,
                       const replay::ReplayOptions& options, const replay::ReplayOutcome& outcome,
                       const std::string& model_name);

}  // namespace kvarena::tools
