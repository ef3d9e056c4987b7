#pragma once

/// @file
/// `PlanOptions`: what a plan is asked for. A plain value.

#include "kvarena/cache/cache_footprint.hpp"
#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace kvarena::capacity {

/// What is asked.
struct PlanOptions {
  std::int64_t memory_bytes = 0;            ///< of a GPU, as its driver tells a process; >= 1
  std::int32_t utilization_permille = 900;  ///< of memory_bytes that may be used; 1 .. 1000
  std::optional<StorageFormat> weights = std::nullopt;  ///< none: as published
  std::optional<StorageFormat> kv = std::nullopt;       ///< none: the model's
  ScaleKind kv_scale = ScaleKind::none;                 ///< of quantised K and V
  KeptTokens kept = KeptTokens::full;                   ///< KvCache keeps all
  std::int32_t block_size_tokens = 16;                  ///< 1 .. 65536
  std::int64_t context_tokens = 0;      ///< of each sequence; 0: the model's longest
  std::int64_t batch = 1;               ///< sequences asked for, >= 1
  std::int32_t tensor_parallel = 1;     ///< ranks a layer is split over
  std::int32_t pipeline_parallel = 1;   ///< stages the layers are split over
  std::int32_t data_parallel = 1;       ///< replicas, each with `batch` sequences
  std::int32_t max_sequences = 256;     ///< of a step, at least; `batch` where that is more
  std::int64_t max_step_tokens = 8192;  ///< of a step, which activations are for
  std::int64_t context_overhead_bytes = std::int64_t{536} << 20;  ///< CUDA context and kernels
  std::int64_t graph_bytes = 0;                                   ///< captured CUDA graphs
  /// Where a KvCache is to hold K and V: its tables and workspaces are then counted, for models
  /// that it can hold; none: they are not.
  std::optional<CacheTarget> target = std::nullopt;
};

/// Sequences of a step that tables and logits are planned for, and that the cache is to have.
constexpr std::int32_t max_sequences_of(const PlanOptions& options) noexcept {
  return static_cast<std::int32_t>(std::max<std::int64_t>(options.max_sequences, options.batch));
}

}  // namespace kvarena::capacity
