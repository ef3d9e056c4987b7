#pragma once

/// @file
/// The answer of `GET /stats` for people. Pure functions.

#include "tools/monitor/monitor_frame.hpp"
#include "tools/monitor/stats_document.hpp"

#include <string>

namespace kvarena::tools {

/// An earlier answer, for the computation of rates.
struct EarlierStats {
  const StatsDocument* stats = nullptr;  ///< null: none yet
  double elapsed_s = 0.0;                ///< since then
};

/// Returns a look at `stats`. The frame's document stays null. `title` is shown as it is.
MonitorFrame frame_of_stats(const std::string& title, const StatsDocument& stats,
                            const EarlierStats& earlier);

/// `width` characters for the states of blocks: # referenced, ~ fenced, + evictable, x offline,
/// . free. A state's share is its count's, to the character.
std::string block_bar(const StatsBlocks& blocks, int width);

}  // namespace kvarena::tools
