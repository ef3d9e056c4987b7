#pragma once

/// @file
/// The output of `kvarena plan`: tables for people (plan_text.cpp) and JSON for programs
/// (plan_json.cpp). Pure functions.

#include "tools/plan/plan_case.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace kvarena::tools {

/// The breakdown, what fits, what limits it and what to set. Of a case that has a plan.
std::string text_of(const PlannedCase& planned);
/// The arithmetic, line by line.
std::string explanation_of(const PlannedCase& planned);
/// Several cases, a line each; of those without a plan the reason.
std::string comparison_of(const std::vector<PlannedCase>& cases);
/// Why nothing is planned for, as an object of its own.
nlohmann::ordered_json json_of(const Finding& refusal);
/// All of it; the arithmetic where asked for. Of a case without a plan the model, the GPU and why.
nlohmann::ordered_json json_of(const PlannedCase& planned, bool explain);

}  // namespace kvarena::tools
