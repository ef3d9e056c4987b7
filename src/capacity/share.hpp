#pragma once

/// @file
/// How ranks share a model: layers go to the stages of a pipeline, heads to the ranks of a
/// tensor-parallel group. Pure functions.

#include "base/range_checks.hpp"
#include "kvarena/base/status.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <algorithm>
#include <cstdint>

namespace kvarena::capacity {

inline constexpr std::int64_t kMostRanks = 4096;

/// As evenly as they can, the first stages having one more.
constexpr std::int64_t layers_of_stage(std::int64_t num_layers, std::int32_t stages,
                                       std::int32_t stage) noexcept {
  return num_layers / stages + (stage < num_layers % stages ? 1 : 0);
}
/// The first of them.
constexpr std::int64_t first_layer_of_stage(std::int64_t num_layers, std::int32_t stages,
                                            std::int32_t stage) noexcept {
  return num_layers / stages * stage + std::min<std::int64_t>(stage, num_layers % stages);
}
/// KV heads of a rank, which has at least one: more ranks than heads hold copies.
constexpr std::int32_t heads_of_rank(std::int32_t num_heads, std::int32_t ranks) noexcept {
  return (num_heads + ranks - 1) / ranks;
}
/// Whether engines split the model over so many ranks: whole query heads each, and whole KV heads
/// or as many copies of each; a latent is on every rank.
constexpr bool can_split_heads(const TransformerShape& shape, std::int32_t ranks) noexcept {
  if (shape.num_q_heads % ranks != 0) return false;
  const std::int32_t kv_heads = shape.mla.kv_lora_rank > 0 ? 1 : shape.num_kv_heads;
  return kv_heads == 0 || kv_heads % ranks == 0 || ranks % kv_heads == 0;
}
/// invalid_argument (tensor_parallel, pipeline_parallel) outside 1 .. kMostRanks, or (stage) for
/// one that there is not.
constexpr Status check_ranks(std::int32_t tensor, std::int32_t stages,
                             std::int32_t stage) noexcept {
  return check_each({{Option::tensor_parallel, tensor, 1, kMostRanks},
                     {Option::pipeline_parallel, stages, 1, kMostRanks},
                     {Option::stage, stage, 0, std::int64_t{stages} - 1}});
}

}  // namespace kvarena::capacity
