#pragma once

/// @file
/// `PlannedCase`: the plan of one model on one GPU, as tables for people (plan_text.cpp) and as
/// JSON for programs (plan_json.cpp), and the parts that these share. Plain values; pure functions.

#include "tools/plan/plan_inputs.hpp"

#include "kvarena/capacity/memory_plan.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {

/// The number of requests with a trace's lengths that fit.
struct PlannedTrace {
  /// At one length.
  struct Row {
    double percentile = 0.0;  ///< of the requests' lengths
    std::int64_t tokens = 0;  ///< that length
    std::int64_t batch = 0;   ///< requests of it that fit at a time
    capacity::PlanLimit limited_by = capacity::PlanLimit::kv_cache;  ///< what limits them
    std::int64_t cached_tokens = 0;  ///< of its prompt, found in a prefix cache, in whole blocks
    /// Requests that fit at a time when the blocks that each finds are held by others already: it
    /// takes only the rest. `batch` is the number when no two find the same.
    std::int64_t batch_sharing = 0;
  };
  std::int64_t requests = 0;       ///< in the trace
  std::int64_t prompt_tokens = 0;  ///< of all its requests
  std::optional<double> hit_rate;  ///< share of the prompt tokens that a prefix cache has, 0 .. 1
  std::vector<Row> rows;           ///< the median and the percentile asked for
  bool ignores_hit_rate = false;   ///< a hit rate was given, for layers that cannot share prefixes

  /// Prompt tokens that the prefix cache saves, of all requests.
  std::int64_t cached_tokens() const noexcept;
};

/// One model on one GPU.
struct PlannedCase {
  capacity::ModelSpec model;                  ///< what
  PlannedMemory memory;                       ///< where
  capacity::PlanOptions options;              ///< how
  std::optional<Finding> refusal;             ///< why the rest is empty
  capacity::MemoryPlan plan;                  ///< the answer
  Status cache;                               ///< ok, or why a KvCache cannot hold it
  capacity::PlannedCache settings;            ///< where cache is ok: those that were planned for
  std::vector<capacity::PlanChange> changes;  ///< changes that make it fit
  std::optional<PlannedTrace> trace;          ///< where one was given
};

/// Makes the plan and searches for changes that fit.
PlannedCase plan_case(const capacity::ModelSpec& model, const PlannedMemory& memory,
                      const capacity::PlanOptions& options);
/// Returns how many requests with the median of the lengths, and with their percentile, fit at a
/// time. `hit_rate` is the share of prompt tokens that a prefix cache has, 0 .. 1. It counts where
/// every layer keeps all tokens.
PlannedTrace plan_trace(const PlannedCase& planned, const TraceLengths& lengths, double percentile,
                        std::optional<double> hit_rate);

/// Returns the types of the planned weights: "bf16", or all types of a file, "bf16 + f32".
std::string weights_types_of(const PlannedCase& planned);
/// The format of K and V as planned.
std::string_view kv_format_of(const PlannedCase& planned);
/// Returns the arithmetic. The weights of each type in file headers come before the plan's own
/// lines.
std::vector<capacity::PlanLine> lines_of(const PlannedCase& planned);
/// Returns the options to give when the weights are not known.
std::string weights_advice_of(const PlannedCase& planned);
/// A change as the command takes it: "--context 3072".
std::string option_of(const capacity::PlanChange& change);
/// "full" or "model".
std::string_view name_of(capacity::KeptTokens kept);
/// Returns in words why `settings` cannot be used; empty: they can.
std::string settings_refusal_of(const PlannedCase& planned);
/// Returns notes about the figures, a line each.
std::vector<std::string> notes_of(const PlannedCase& planned);

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
