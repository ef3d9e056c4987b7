#pragma once

/// @file
/// Weights and activations of one rank. Pure functions.

#include "kvarena/capacity/memory_plan.hpp"

#include <cstdint>
#include <vector>

namespace kvarena::capacity {

/// Bytes and how they come about.
struct RankMemory {
  std::int64_t bytes = 0;
  std::vector<PlanLine> lines;
};

/// Whether anything tells how large the weights are.
bool has_weights(const ModelSpec& model) noexcept;
/// Whether the weights are planned as they were published.
bool has_published_weights(const ModelSpec& model, const PlanOptions& options) noexcept;
/// Weights of a rank of `stage`; none where nothing tells them.
RankMemory weights_of_rank(const ModelSpec& model, const PlanOptions& options, std::int32_t stage);
/// The most that a step of max_step_tokens tokens keeps beside weights and KV, in 16-bit numbers:
/// residual stream and its normalised copy, and the larger of attention's, the MLP's and the
/// logits' intermediates, which are never there at the same time.
RankMemory activations_of_rank(const ModelSpec& model, const PlanOptions& options);

}  // namespace kvarena::capacity
