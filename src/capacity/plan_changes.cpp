#include "kvarena/capacity/memory_plan.hpp"

#include "capacity/planning.hpp"
#include "capacity/share.hpp"

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kLeastStepTokens = 512;
constexpr std::int32_t kMostTensorRanks = 64;
constexpr std::int32_t kMostUtilization = 980;  // the rest is the driver's and other processes'

/// The changes that were tried, and those that help.
class Changes {
 public:
  Changes(const ModelSpec& model, const PlanOptions& options) : model_(model), options_(options) {}

  /// Whether it fits with `changed`, which is then kept.
  bool try_change(PlanField field, const PlanOptions& changed) {
    if (!fits(changed)) return false;
    helpful_.push_back({field, changed});
    return true;
  }
  void try_context(const MemoryPlan& now) {
    PlanOptions changed = options_;
    changed.context_tokens = now.max_context;
    if (now.max_context < 1 || now.max_context >= now.context_tokens) return;
    try_change(PlanField::context_tokens, changed);
  }
  void try_batch(const MemoryPlan& now) {
    PlanOptions changed = options_;
    changed.batch = now.max_batch;
    if (now.max_batch < 1 || now.max_batch >= options_.batch) return;
    try_change(PlanField::batch, changed);
  }
  void try_utilization() {
    if (options_.utilization_permille >= kMostUtilization) return;
    const auto enough = least_of(&PlanOptions::utilization_permille, kMostUtilization);
    if (enough) try_change(PlanField::utilization_permille, *enough);
  }
  void try_step_tokens() {
    PlanOptions changed = options_;
    for (std::int64_t tokens = options_.max_step_tokens / 2; tokens >= kLeastStepTokens;
         tokens /= 2) {
      changed.max_step_tokens = tokens;
      if (try_change(PlanField::max_step_tokens, changed)) return;
    }
  }
  void try_max_sequences() {
    const auto fewest = static_cast<std::int32_t>(options_.batch);  // more than that are asked for
    if (options_.batch >= options_.max_sequences) return;
    const auto enough = least_of(&PlanOptions::max_sequences, fewest);
    if (enough) try_change(PlanField::max_sequences, *enough);
  }
  void try_retention() {
    PlanOptions changed = options_;
    changed.kept = KeptTokens::model;
    if (options_.kept == KeptTokens::full) try_change(PlanField::kept, changed);
  }
  /// Every format that helps, of the first of the lists that has one.
  void try_formats(PlanField field, std::optional<StorageFormat> PlanOptions::*which,
                   std::initializer_list<std::initializer_list<std::string_view>> lists) {
    PlanOptions changed = options_;
    for (const auto& names : lists) {
      bool helps = false;
      for (const std::string_view name : names) {
        changed.*which = *find_storage_format(name);
        helps |= try_change(field, changed);
      }
      if (helps) return;
    }
  }
  void try_ranks() {
    PlanOptions changed = options_;
    for (const std::int32_t ranks : ranks_that_split(model_.shape)) {
      if (ranks > kMostTensorRanks) return;
      changed.tensor_parallel = ranks;
      if (ranks > options_.tensor_parallel && try_change(PlanField::tensor_parallel, changed))
        return;
    }
  }
  void try_stages() {
    const std::int32_t most = model_.shape.num_layers;
    if (options_.pipeline_parallel >= most) return;
    const auto enough = least_of(&PlanOptions::pipeline_parallel, most);
    if (enough) try_change(PlanField::pipeline_parallel, *enough);
  }
  std::vector<PlanChange> take() { return std::move(helpful_); }

 private:
  bool fits(const PlanOptions& changed) const {
    const Result<std::int64_t> context = checked_context(model_, changed);
    return context && capacity::fits(model_, changed, *context);
  }
  /// The options with the number that fits and is the nearest to what it is now, up or down to
  /// `last`; none where that does not fit either.
  std::optional<PlanOptions> least_of(std::int32_t PlanOptions::*number, std::int32_t last) const {
    const std::int64_t now = options_.*number;
    const std::int64_t sign = last > now ? 1 : -1;
    const auto with = [&](std::int64_t steps) {
      PlanOptions changed = options_;
      changed.*number = static_cast<std::int32_t>(now + sign * steps);
      return changed;
    };
    const std::int64_t most = sign * (last - now);
    if (!fits(with(most))) return std::nullopt;
    return with(1 + longest_that([&](std::int64_t steps) { return !fits(with(steps)); }, 0, most));
  }

  const ModelSpec& model_;
  const PlanOptions& options_;
  std::vector<PlanChange> helpful_;
};

}  // namespace

std::vector<PlanChange> changes_that_fit(const ModelSpec& model, const PlanOptions& options) {
  const Result<MemoryPlan> now = plan(model, options);
  if (!now || now->fits) return {};
  Changes changes(model, options);
  changes.try_context(*now);
  changes.try_batch(*now);
  changes.try_step_tokens();
  changes.try_max_sequences();
  changes.try_utilization();
  changes.try_retention();
  changes.try_formats(PlanField::kv, &PlanOptions::kv, {{"q8_0", "fp8_e4m3", "int8"}, {"q4_0"}});
  changes.try_formats(PlanField::weights, &PlanOptions::weights, {{"q8_0", "fp8_e4m3"}, {"q4_0"}});
  changes.try_ranks();
  changes.try_stages();
  return changes.take();
}

}  // namespace kvarena::capacity
