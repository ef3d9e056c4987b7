#pragma once

/// @file
/// `StepTimeModel`: how long a GPU needs for one step of an engine, by its roofline: the longer of
/// the step's arithmetic at the GPU's peak and its weights and KV at the GPU's bandwidth, each at a
/// stated share of the peak. docs/reference/capacity.md has the formulas and where the shares are
/// from, docs/explanation/capacity.md a run of a real engine beside it. Values are plain; pure
/// functions, any thread. Double arithmetic without fused operations: the same nanoseconds on every
/// machine.

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
  double matrices = 0.8;   ///< of the peak: multiplication by weights
  double attention = 0.6;  ///< of the peak: attention
  double bandwidth = 0.8;  ///< of the bandwidth: weights and KV
};

/// Layers whose attention is alike.
struct AttentionLayers {
  CacheKind kind = CacheKind::full;           ///< which tokens they see
  std::int64_t num_layers = 0;                ///< those that share another's KV included
  std::int64_t limit_tokens = 0;              ///< window, chunked, cross: as of CacheGroup
  std::int64_t prompt_flops_per_pair = 0;     ///< a layer, a new token and a token it sees
  std::int64_t decode_flops_per_pair = 0;     ///< the same for a single new token
  std::int64_t kv_bytes_per_token = 0;        ///< a layer: read for each token seen
  std::int64_t state_bytes_per_sequence = 0;  ///< a layer: read and written once a step
};

/// Experts of a mixture. Tokens are taken to choose theirs evenly and independently.
struct ExpertLayers {
  std::int64_t num_layers = 0;         ///< layers that have them
  std::int64_t num_experts = 0;        ///< a layer
  std::int64_t experts_per_token = 0;  ///< that a token visits
  std::int64_t parameters_each = 0;    ///< of one expert
  std::int64_t bytes_each = 0;         ///< of one expert
};

/// A model on a GPU as numbers.
struct StepTimeOptions {
  std::int64_t layer_parameters = 0;       ///< that every token is multiplied by; experts apart
  std::int64_t layer_bytes = 0;            ///< of those, read once a step
  std::int64_t head_parameters = 0;        ///< of the output head: one row of logits a sequence
  std::int64_t head_bytes = 0;             ///< of those, read once a step
  std::vector<ExpertLayers> experts;       ///< may be empty
  std::vector<AttentionLayers> attention;  ///< may be empty
  std::int64_t bandwidth_bytes_per_second = 0;  ///< of the GPU, > 0
  std::int64_t flops_per_second = 0;            ///< peak of its matrix units, > 0
  StepEfficiency efficiency;                    ///< shares of the two
};

/// The numbers of `model` in its own formats on `gpu`. A model whose parts are known only in sum
/// has its embedding counted among the layers. Returns unsupported (name) where not even the sum is
/// known, or of a mixture not what its experts are, or a storage format is none.
KVARENA_EXPORT Result<StepTimeOptions> step_time_options(const ModelSpec& model,
                                                         const GpuSpec& gpu);

/// One sequence of a step: `new_tokens` >= 1 after `context_tokens`.
struct StepTimeRow {
  std::int64_t context_tokens = 0;  ///< computed before the step
  std::int64_t new_tokens = 0;      ///< computed in it
};

/// Nanoseconds of a step.
struct StepTime {
  double arithmetic_ns = 0.0;  ///< matrices and attention at their shares of the peak
  double traffic_ns = 0.0;     ///< weights and KV at their share of the bandwidth

  /// The longer of the two, rounded; saturates.
  KVARENA_EXPORT std::int64_t total_ns() const noexcept;
};

/// Times steps. Immutable.
class StepTimeModel {
 public:
  /// Returns invalid_argument naming the option (efficiency in thousandths), exhausted
  /// (host_memory).
  KVARENA_EXPORT static Result<StepTimeModel> create(const StepTimeOptions& options);

  /// A step over `rows`, in any order. All zero without rows. O(rows x groups of layers).
  KVARENA_EXPORT StepTime time_of(std::span<const StepTimeRow> rows) const noexcept;
  /// What it was made from.
  const StepTimeOptions& options() const noexcept { return options_; }

 private:
  explicit StepTimeModel(const StepTimeOptions& options) : options_(options) {}

  StepTimeOptions options_;
};

}  // namespace kvarena::capacity
