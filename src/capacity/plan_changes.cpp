#include "kvarena/capacity/memory_plan.hpp"

#include "capacity/stage_memory.hpp"

#include <fmt/format.h>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kLeastStepTokens = 512;
constexpr std::int32_t kMostUtilization = 980;  // the rest is the driver's and other processes'

/// The changes that were tried, and those that help.
class Changes {
 public:
  Changes(const ModelSpec& model, const PlanOptions& options) : model_(model), options_(options) {}

  /// Whether the plan fits with `changed`, which is then kept.
  bool try_change(std::string change, const PlanOptions& changed) {
    const Result<MemoryPlan> made = plan(model_, changed);
    if (!made || !made->fits) return false;
    helpful_.push_back({std::move(change), *made});
    return true;
  }
  void try_context(const MemoryPlan& now) {
    PlanOptions changed = options_;
    changed.context_tokens = now.max_context;
    if (now.max_context < 1 || now.max_context >= now.context_tokens) return;
    try_change(fmt::format("--context {}", now.max_context), changed);
  }
  void try_batch(const MemoryPlan& now) {
    PlanOptions changed = options_;
    changed.batch = now.max_batch;
    if (now.max_batch < 1 || now.max_batch >= options_.batch) return;
    try_change(fmt::format("--batch {}", now.max_batch), changed);
  }
  void try_utilization() {
    const auto with = [this](std::int64_t permille) {
      PlanOptions changed = options_;
      changed.utilization_permille = static_cast<std::int32_t>(permille);
      return changed;
    };
    const auto is_short = [&](std::int64_t permille) {
      const Result<MemoryPlan> made = plan(model_, with(permille));
      return !made || !made->fits;
    };
    if (options_.utilization_permille >= kMostUtilization || is_short(kMostUtilization)) return;
    const std::int64_t enough =
        longest_that(is_short, options_.utilization_permille, kMostUtilization) + 1;
    try_change(fmt::format("--utilization {:.3g}", static_cast<double>(enough) / 1000.0),
               with(enough));
  }
  void try_step_tokens() {
    PlanOptions changed = options_;
    for (std::int64_t tokens = options_.max_step_tokens / 2; tokens >= kLeastStepTokens;
         tokens /= 2) {
      changed.max_step_tokens = tokens;
      if (try_change(fmt::format("--max-batched-tokens {}", tokens), changed)) return;
    }
  }
  void try_formats(const char* option, std::optional<StorageFormat> PlanOptions::*which,
                   std::initializer_list<std::string_view> names) {
    PlanOptions changed = options_;
    for (const std::string_view name : names) {
      changed.*which = *find_storage_format(name);
      if (try_change(fmt::format("{} {}", option, name), changed)) return;
    }
  }
  void try_ranks() {
    PlanOptions changed = options_;
    for (std::int32_t ranks = options_.tensor_parallel * 2; ranks <= 64; ranks *= 2) {
      if (model_.shape.num_q_heads % ranks != 0) return;  // engines split whole heads
      changed.tensor_parallel = ranks;
      if (try_change(fmt::format("--tp {}", ranks), changed)) return;
    }
  }
  std::vector<PlanChange> take() { return std::move(helpful_); }

 private:
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
  changes.try_utilization();
  changes.try_formats("--kv-dtype", &PlanOptions::kv, {"fp8_e4m3"});
  changes.try_formats("--weights-dtype", &PlanOptions::weights, {"fp8_e4m3", "q8_0", "q4_0"});
  changes.try_ranks();
  return changes.take();
}

}  // namespace kvarena::capacity
