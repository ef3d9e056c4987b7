#pragma once

/// @file
/// How ranks share a model: the stages of a pipeline share the layers, the ranks of a
/// tensor-parallel group share the heads. Pure functions.

#include "base/range_checks.hpp"
#include "capacity/amount.hpp"
#include "kvarena/base/status.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::capacity {

inline constexpr std::int64_t kMostRanks = 4096;

/// Returns the layers of a stage. Layers are spread evenly; the first stages have one more.
constexpr std::int64_t layers_of_stage(std::int64_t num_layers, std::int32_t stages,
                                       std::int32_t stage) noexcept {
  return num_layers / stages + (stage < num_layers % stages ? 1 : 0);
}
constexpr std::int64_t first_layer_of_stage(std::int64_t num_layers, std::int32_t stages,
                                            std::int32_t stage) noexcept {
  return num_layers / stages * stage + std::min<std::int64_t>(stage, num_layers % stages);
}
/// Returns the KV heads of a rank. A rank has at least one; when there are more ranks than heads,
/// ranks hold copies.
constexpr std::int32_t heads_of_rank(std::int32_t num_heads, std::int32_t ranks) noexcept {
  return (num_heads + ranks - 1) / ranks;
}
/// Elements that share one f32 scale in rows of a sparse-attention index.
inline constexpr std::int64_t kIndexBlock = 128;
/// Returns the bytes of a token's sparse-attention index in one layer: 8 bits an element and an f32
/// for every 128 elements, for any type of K and V. Sources: DeepSeek-V3.2's reference code, vLLM
/// and SGLang.
constexpr std::int64_t index_row_bytes(std::int64_t index_dim) noexcept {
  return index_dim + (index_dim + kIndexBlock - 1) / kIndexBlock * 4;
}
/// Returns whether some layers of a model have a sparse-attention index.
inline bool is_sparse(const ModelSpec& model) noexcept {
  return std::ranges::any_of(model.groups, [](const CacheGroup& g) { return g.index_dim > 0; });
}
/// Returns whether a sparse model keeps the rows of this group with scales and a positional part of
/// their own: latents in 8 bits.
inline bool has_sparse_rows(const CacheGroup& group, const StorageFormat& format) noexcept {
  return group.kind == CacheKind::latent && format.name.starts_with("fp8");
}
/// Returns the data that a layer of Mamba-2 keeps: a [head_dim, state] matrix for each head, and
/// the last kernel - 1 inputs of its convolution.
constexpr CacheGroup state_of(const MambaShape& m) noexcept {
  return {.kind = CacheKind::recurrent,
          .state_elements = times(m.num_heads, m.head_dim, m.state),
          .conv_elements = times(m.channels(), m.kernel - 1)};
}
/// Returns whether engines can split the model over `ranks` ranks. Each rank gets whole query
/// heads, and whole KV heads or a copy of one; each KV head has equally many copies. Every rank has
/// the latent.
constexpr bool can_split_heads(const TransformerShape& shape, std::int32_t ranks) noexcept {
  if (shape.num_q_heads % ranks != 0) return false;
  const std::int32_t kv_heads = shape.mla.kv_lora_rank > 0 ? 1 : shape.num_kv_heads;
  return kv_heads == 0 || kv_heads % ranks == 0 || ranks % kv_heads == 0;
}
/// Returns every number of ranks over which engines can split the model, ascending.
inline std::vector<std::int32_t> ranks_that_split(const TransformerShape& shape) {
  std::vector<std::int32_t> ranks;
  const std::int64_t most = shape.num_q_heads > 0 ? shape.num_q_heads : kMostRanks;
  for (std::int32_t count = 1; count <= std::min(most, kMostRanks); ++count) {
    if (can_split_heads(shape, count)) ranks.push_back(count);
  }
  return ranks;
}
/// Returns invalid_argument (tensor_parallel, pipeline_parallel) outside 1 .. kMostRanks, or
/// (stage) for a stage that does not exist.
constexpr Status check_ranks(std::int32_t tensor, std::int32_t stages,
                             std::int32_t stage) noexcept {
  return check_each({{Option::tensor_parallel, tensor, 1, kMostRanks},
                     {Option::pipeline_parallel, stages, 1, kMostRanks},
                     {Option::stage, stage, 0, std::int64_t{stages} - 1}});
}

/// Returns the number of layers of each group on each stage, [stages][groups]. Groups do not say
/// where their layers are, so they are assumed to be evenly mixed. O(layers * log groups).
std::vector<std::vector<std::int32_t>> layers_by_stage(std::span<const CacheGroup> groups,
                                                       std::int32_t stages);
/// Returns how often a stage of a model with `num_layers` layers has `part`: once for each layer,
/// or once, or never.
std::int64_t parts_of_stage(const ParameterPart& part, std::int32_t num_layers, std::int32_t stages,
                            std::int32_t stage) noexcept;

}  // namespace kvarena::capacity
