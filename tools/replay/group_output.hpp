#pragma once

/// @file
/// What a replay of a pool with groups reports: as lines for people, and as JSON.

#include "replay/replay_report.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace kvarena::tools {

/// Returns the groups, or null without groups.
nlohmann::ordered_json groups_json(const replay::ReplayReport& report);
/// Returns pages and waste, or null without groups.
nlohmann::ordered_json pages_json(const replay::ReplayReport& report);
/// Returns the lines of the summary about groups and waste; none without groups.
std::string group_lines(const replay::ReplayReport& report);
/// Returns the line of the pages' account; none without groups.
std::string page_account_line(const replay::ReplayReport& report);

}  // namespace kvarena::tools
