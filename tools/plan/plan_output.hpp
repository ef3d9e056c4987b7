#pragma once

/// @file
/// The output of `kvarena plan`: tables for people (plan_text.cpp) and JSON for programs
/// (plan_json.cpp). Pure functions.

#include "tools/plan/plan_case.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace kvarena::tools {

/// Returns the breakdown, the requests that fit, their limit, and the options to set. Requires a
/// case with a plan.
std::string text_of(const PlannedCase& planned);
/// The arithmetic, line by line.
std::string explanation_of(const PlannedCase& planned);
/// Returns several cases, a line each. A case without a plan has the reason.
std::string comparison_of(const std::vector<PlannedCase>& cases);
/// Returns the whole case, with the arithmetic when requested. A case without a plan has the model,
/// the GPU and the reason.
nlohmann::ordered_json json_of(const PlannedCase& planned, bool explain);

}  // namespace kvarena::tools
