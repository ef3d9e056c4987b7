#pragma once

/// @file
/// `PlannedCase`: the plan of one model on one GPU, and the parts that text and JSON share. Plain
/// values; pure functions.

#include "tools/plan/plan_inputs.hpp"

#include "kvarena/capacity/memory_plan.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {

/// How many requests of a trace's lengths fit.
struct PlannedTrace {
  /// At one length.
  struct Row {
    double percentile = 0.0;  ///< of the requests' lengths
    std::int64_t tokens = 0;  ///< that length
    std::int64_t batch = 0;   ///< requests of it that fit at a time
    capacity::PlanLimit limited_by = capacity::PlanLimit::kv_cache;  ///< what limits them
  };
  std::int64_t requests = 0;  ///< in the trace
  std::vector<Row> rows;      ///< the median and the percentile asked for
};

/// One model on one GPU.
struct PlannedCase {
  capacity::ModelSpec model;                  ///< what
  PlannedMemory memory;                       ///< where
  capacity::PlanOptions options;              ///< how
  std::optional<Finding> refusal;             ///< why the rest is empty
  capacity::MemoryPlan plan;                  ///< the answer
  Status cache;                               ///< ok, or why a KvCache cannot hold it
  KvCacheOptions settings;                    ///< where cache is ok: those that were planned for
  std::vector<capacity::PlanChange> changes;  ///< what would make it fit
  std::optional<PlannedTrace> trace;          ///< where one was given
};

/// Plans, and looks for changes that fit.
PlannedCase plan_case(const capacity::ModelSpec& model, const PlannedMemory& memory,
                      const capacity::PlanOptions& options);
/// How many requests of the lengths' median, and of their percentile, fit at a time.
PlannedTrace plan_trace(const PlannedCase& planned, const TraceLengths& lengths, double percentile);

/// The types of the weights as planned: "bf16", of files all that they have, "bf16 + f32".
std::string weights_types_of(const PlannedCase& planned);
/// The format of K and V as planned.
std::string_view kv_format_of(const PlannedCase& planned);
/// The arithmetic, the weights of each type that headers tell before the plan's own lines.
std::vector<capacity::PlanLine> lines_of(const PlannedCase& planned);
/// What to give where the weights are not known.
std::string weights_advice_of(const PlannedCase& planned);
/// A change as the command takes it: "--context 3072".
std::string option_of(const capacity::PlanChange& change);
/// "full" or "model".
std::string_view name_of(capacity::KeptTokens kept);
/// Why `settings` are none to set, in words; empty: they are.
std::string settings_refusal_of(const PlannedCase& planned);
/// What a reader should know of the figures, a line each.
std::vector<std::string> notes_of(const PlannedCase& planned);

}  // namespace kvarena::tools
