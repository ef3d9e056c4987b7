#pragma once

/// @file
/// `StepTimeModel`: estimates how long a GPU needs for one step of an engine, by the roofline
/// model. One time is the step's arithmetic at a stated share of the GPU's peak. The other is the
/// traffic of weights and KV at a stated share of the GPU's bandwidth. The step takes the longer
/// time. docs/explanation/capacity.md has the formulas, the sources of the shares, and a comparison
/// with a real engine. Plain values and pure functions for any thread. The arithmetic is double
/// without fused operations, so every machine computes the same nanoseconds.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::capacity {

/// Shares of the GPU's peaks that kernels reach, in (0, 1]. Source: ai-dynamo/aiconfigurator, the
/// fixed factors of perf_database.py at commit 8c399e56 (GEMM, context attention, generation
/// attention) and mem_bw_empirical_scaling_factor of systems/*.yaml.
struct StepEfficiency {
  double matrices = 0.8;   ///< share of the peak: multiplication by weights
  double attention = 0.6;  ///< share of the peak: attention
  double bandwidth = 0.8;  ///< share of the bandwidth: weights and KV
};

/// Layers with the same attention.
struct AttentionLayers {
  CacheKind kind = CacheKind::full;  ///< which tokens the layers see
  std::int64_t num_layers = 0;       ///< layers, with those that read another layer's KV
  std::int64_t limit_tokens = 0;     ///< window, chunked, cross: as CacheGroup::limit_tokens
  std::int64_t prompt_flops_per_pair =
      0;  ///< in one layer, for a new token and a token that it sees
  std::int64_t decode_flops_per_pair = 0;     ///< the same for a sequence with one new token
  std::int64_t kv_bytes_per_token = 0;        ///< read in one layer for each token seen
  std::int64_t state_bytes_per_sequence = 0;  ///< read and written in one layer once a step
};

/// Experts of a mixture. The model assumes that tokens choose their experts evenly and
/// independently.
struct ExpertLayers {
  std::int64_t num_layers = 0;         ///< layers with these experts
  std::int64_t num_experts = 0;        ///< a layer
  std::int64_t experts_per_token = 0;  ///< experts that a token visits
  std::int64_t parameters_each = 0;    ///< of one expert
  std::int64_t bytes_each = 0;         ///< of one expert
};

/// The numbers of a model and a GPU.
struct StepTimeOptions {
  std::int64_t layer_parameters = 0;  ///< that every token is multiplied by, without experts
  std::int64_t layer_bytes = 0;       ///< bytes of those parameters, read once a step
  std::int64_t head_parameters = 0;   ///< of the output head; each sequence needs one row of logits
  std::int64_t head_bytes = 0;        ///< bytes of those parameters, read once a step
  std::vector<ExpertLayers> experts;  ///< may be empty
  std::vector<AttentionLayers> attention;       ///< may be empty
  std::int64_t bandwidth_bytes_per_second = 0;  ///< bandwidth of the GPU, > 0
  std::int64_t flops_per_second = 0;            ///< peak of its matrix units, > 0
  StepEfficiency efficiency;                    ///< reached shares of bandwidth and flops
};

/// Returns the numbers of `model` in its own formats on `gpu`. When only the sum of the model's
/// parameters is known, the embedding counts as a part of the layers. Returns unsupported (name)
/// when the sum is unknown, the experts of a mixture are unknown, or the model names an unknown
/// storage format.
KVARENA_EXPORT Result<StepTimeOptions> step_time_options(const ModelSpec& model,
                                                         const GpuSpec& gpu);

/// One sequence of a step, with `new_tokens` >= 1 new tokens.
struct StepTimeRow {
  std::int64_t context_tokens = 0;  ///< tokens computed before the step
  std::int64_t new_tokens = 0;      ///< tokens computed in the step
};

/// The time of a step in nanoseconds.
struct StepTime {
  double arithmetic_ns = 0.0;  ///< matrices and attention at their shares of the peak
  double traffic_ns = 0.0;     ///< weights and KV at their share of the bandwidth

  /// Returns the longer of the two times, rounded. Saturates.
  KVARENA_EXPORT std::int64_t total_ns() const noexcept;
};

/// Estimates the time of steps. Immutable.
class StepTimeModel {
 public:
  /// Makes a model. Returns invalid_argument with the option (efficiency in thousandths), or
  /// exhausted (host_memory).
  KVARENA_EXPORT static Result<StepTimeModel> create(const StepTimeOptions& options);

  /// Returns the time of a step with `rows`, in any order. Both times are 0 without rows. O(rows x
  /// groups of layers).
  KVARENA_EXPORT StepTime time_of(std::span<const StepTimeRow> rows) const noexcept;
  /// Returns the options that the model was made from.
  const StepTimeOptions& options() const noexcept { return options_; }

 private:
  explicit StepTimeModel(const StepTimeOptions& options) : options_(options) {}

  StepTimeOptions options_;
};

}  // namespace kvarena::capacity
