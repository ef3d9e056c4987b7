#pragma once

/// @file
/// The answer of `GET /stats` for people. Pure functions; they throw nlohmann::json::exception for
/// a document of another shape.

#include "monitor_frame.hpp"

#include <string>

namespace kvarena::tools {

/// A look at `stats`. Rates are told against `before`, taken `elapsed_s` earlier; null: none yet.
MonitorFrame frame_of_stats(const std::string& title, const nlohmann::ordered_json& stats,
                            const nlohmann::ordered_json& before, double elapsed_s);

/// `width` characters for the states of blocks: # referenced, ~ fenced, + evictable, x offline,
/// . free. A state's share is its count's, to the character.
std::string block_bar(const nlohmann::ordered_json& blocks, int width);

}  // namespace kvarena::tools
