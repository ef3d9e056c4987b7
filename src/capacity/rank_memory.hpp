#pragma once

/// @file
/// Weights and activations of one rank. Pure functions.

#include "kvarena/capacity/memory_plan.hpp"

#include <cstdint>
#include <vector>

namespace kvarena::capacity {

/// Bytes with the lines of their arithmetic.
struct RankMemory {
  std::int64_t bytes = 0;
  std::vector<PlanLine> lines;
};

/// Returns whether the size of the weights is known.
bool has_weights(const ModelSpec& model) noexcept;
/// Returns whether the weights are planned in their published formats.
bool has_published_weights(const ModelSpec& model, const PlanOptions& options) noexcept;
/// Returns the weights of a rank of `stage`; nothing when their size is unknown.
RankMemory weights_of_rank(const ModelSpec& model, const PlanOptions& options, std::int32_t stage);
/// Returns the most memory of a step of max_step_tokens tokens beside weights and KV, in 16-bit
/// numbers. It is the residual stream, its normalised copy, and the largest of the intermediates of
/// attention, the MLP and the logits, which never exist at the same time.
RankMemory activations_of_rank(const ModelSpec& model, const PlanOptions& options);

}  // namespace kvarena::capacity
