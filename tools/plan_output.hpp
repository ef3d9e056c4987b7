#pragma once

/// @file
/// What `kvarena plan` says: tables for people and JSON for programs. Pure functions.

#include "plan_inputs.hpp"

#include "kvarena/capacity/memory_plan.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvarena::tools {

/// How many requests of a trace's lengths fit.
struct PlannedTrace {
  /// At one length.
  struct Row {
    double percentile = 0.0;  ///< of the requests' lengths
    std::int64_t tokens = 0;  ///< that length
    std::int64_t batch = 0;   ///< requests of it that fit at a time
  };
  std::int64_t requests = 0;  ///< in the trace
  std::vector<Row> rows;      ///< the median and the percentile asked for
};

/// One model on one GPU.
struct PlannedCase {
  capacity::ModelSpec model;                  ///< what
  PlannedMemory memory;                       ///< where
  capacity::PlanOptions options;              ///< how
  capacity::MemoryPlan plan;                  ///< the answer
  Status cache;                               ///< ok, or why a KvCache cannot hold it
  std::vector<capacity::PlanChange> changes;  ///< what would make it fit
  std::optional<PlannedTrace> trace;          ///< where one was given
};

/// The breakdown, what fits, what limits it and what to set.
std::string text_of(const PlannedCase& planned);
/// The arithmetic, line by line.
std::string explanation_of(const PlannedCase& planned);
/// Several cases, a line each.
std::string comparison_of(const std::vector<PlannedCase>& cases);
/// All of it; the arithmetic where asked for.
nlohmann::ordered_json json_of(const PlannedCase& planned, bool explain);

}  // namespace kvarena::tools
