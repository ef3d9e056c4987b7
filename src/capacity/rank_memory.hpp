#pragma once

/// @file
/// Weights and activations of one rank. Pure functions.

#include "kvarena/capacity/memory_plan.hpp"

#include <cstdint>
#include <vector>

namespace kvarena::capacity {

/// Whether the weights are planned as they were published.
bool has_published_weights(const ModelSpec& model, const PlanOptions& options) noexcept;
/// Weights of a rank of `stage`, and how they came about in `lines` where there are any. Requires
/// parts or exact bytes.
std::int64_t weights_of_rank(const ModelSpec& model, const PlanOptions& options, std::int32_t stage,
                             std::vector<PlanLine>* lines = nullptr);
/// The most that a step of max_step_tokens tokens keeps beside weights and KV, in 16-bit numbers:
/// residual stream and its normalised copy, and the larger of attention's, the MLP's and the
/// logits' intermediates, which are never there at the same time.
std::int64_t activations_of_rank(const ModelSpec& model, const PlanOptions& options,
                                 std::vector<PlanLine>* lines = nullptr);

}  // namespace kvarena::capacity
