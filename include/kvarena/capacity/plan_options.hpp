#pragma once

/// @file
/// `PlanOptions`: the options of a plan. A plain value.

#include "kvarena/cache/cache_footprint.hpp"
#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace kvarena::capacity {

/// Options of a plan.
struct PlanOptions {
  std::int64_t memory_bytes = 0;  ///< memory of a GPU as its driver reports it to a process; >= 1
  std::int32_t utilization_permille = 900;  ///< share of memory_bytes that may be used; 1 .. 1000
  std::optional<StorageFormat> weights =
      std::nullopt;                                ///< type of the weights; nullopt: as published
  std::optional<StorageFormat> kv = std::nullopt;  ///< type of K and V; nullopt: the model's
  ScaleKind kv_scale = ScaleKind::none;            ///< scales of quantised K and V
  KeptTokens kept = KeptTokens::model;             ///< which tokens are kept
  std::int32_t block_size_tokens = 16;             ///< 1 .. 65536
  std::int64_t context_tokens = 0;      ///< tokens of each sequence; 0: the model's longest context
  std::int64_t batch = 1;               ///< sequences that must fit, >= 1
  std::int32_t tensor_parallel = 1;     ///< ranks over which a layer is split
  std::int32_t pipeline_parallel = 1;   ///< stages over which the layers are split
  std::int32_t data_parallel = 1;       ///< replicas, each with `batch` sequences
  std::int32_t max_sequences = 256;     ///< sequences of a step; `batch` when that is more
  std::int64_t max_step_tokens = 8192;  ///< new tokens of a step, which decide the activations
  std::int64_t context_overhead_bytes = std::int64_t{536} << 20;  ///< CUDA context and kernels
  std::int64_t graph_bytes = 0;                                   ///< captured CUDA graphs
  /// The target of a KvCache that is to hold K and V. With a target, the cache's tables and
  /// workspaces are counted for models that a KvCache can hold. nullopt: they are not counted.
  std::optional<CacheTarget> target = std::nullopt;
};

/// Returns the sequences of a step for which tables and logits are planned. The planned cache has
/// as many.
constexpr std::int32_t max_sequences_of(const PlanOptions& options) noexcept {
  return static_cast<std::int32_t>(std::max<std::int64_t>(options.max_sequences, options.batch));
}

}  // namespace kvarena::capacity
