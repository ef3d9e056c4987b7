#pragma once

/// @file
/// What a replay with a prefix cache reports: as lines for people, and as JSON.

#include "replay/replay_options.hpp"
#include "replay/replay_report.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace kvarena::tools {

/// Returns the figures, or null without a prefix cache.
nlohmann::ordered_json prefix_json(const replay::ReplayReport& report);
/// Returns the lines of the summary; none without a prefix cache.
std::string prefix_lines(const replay::ReplayOptions& options, const replay::ReplayReport& report);

}  // namespace kvarena::tools
