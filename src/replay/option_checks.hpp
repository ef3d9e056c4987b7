#pragma once

/// @file
/// Options of a replay that contradict one another, in words.

#include "replay/failure.hpp"
#include "replay/replay_options.hpp"

#include <string>

namespace kvarena::replay {

/// A failure for options that cannot go together.
ReplayFailure contradiction(std::string happened, std::string expected, std::string advice);

/// Returns what is wrong with the options, before anything is read or made.
MaybeFailure check_options(const ReplayOptions& options);

}  // namespace kvarena::replay
