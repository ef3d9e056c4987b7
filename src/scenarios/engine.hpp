#pragma once

/// @file
/// `CheckedEngine`: a small engine that fills a KvCache with real bytes and verifies the results.
/// It has sequences with a prompt and an output, and steps of chunks and decodes. K and V are made
/// on the device and compared as in a replay (KvVerifier). It has no scheduler; scenarios choose
/// the sequences that a step grows. `ServedInstance`: such an engine with weights.
///
/// An engine borrows the device and owns cache and sequences. Not movable; one thread at a time.

#include "scenarios/served_model.hpp"
#include "scenarios/suite.hpp"
#include "verify/failure.hpp"
#include "verify/verifier.hpp"

#include "kvarena/cache/cache_footprint.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvarena::scenarios {

using verify::AttentionMode;
using verify::KvVerifier;
using verify::LayerRange;
using verify::StepRow;
using verify::VerificationReport;

/// A sequence and the length that it is to reach.
struct Job : verify::WrittenSequence {
  std::int64_t final_length = 0;

  bool is_finished() const noexcept { return length == final_length; }
};

/// The size of the cache, and the part of it that is verified.
struct EngineOptions {
  PoolSize pool{};                             ///< of the cache
  std::int64_t watermark_blocks = 0;           ///< what admission leaves
  std::int32_t max_sequences = 64;             ///< at a time, and in a step
  std::int64_t max_step_tokens = 128;          ///< new tokens in a step that is not refused
  AttentionMode mode = AttentionMode::sample;  ///< sample or full; see KvVerifier
  std::int64_t sample_every = 16;              ///< steps from one verified one to the next
  LayerRange layers{};                         ///< written and verified; none: all
  bool touch_pool = false;                     ///< commits every page of the pool, and poisons it
  std::int32_t num_threads = 0;                ///< host: of attention; 0: one a core
  const std::atomic<bool>* stop = nullptr;     ///< once true, a step fails as interrupted
};

/// The unit of memory of a GPU's driver; cudaMalloc rounds up to it.
inline constexpr std::int64_t kDriverPieceBytes = std::int64_t{2} << 20;
/// Pieces that a driver may keep for its own use: after the instances of allocation-failure an
/// H200's kept 7 and 11.
inline constexpr std::int64_t kDriverPieces = 16;

/// The work of a step besides growth.
enum class StepWork : std::uint8_t {
  write,   ///< writes K and V
  attend,  ///< writes, computes attention where the mode says so, and compares
};

/// The end of a step. At most one of the two is set.
struct StepOutcome {
  Status refused;        ///< why append refused; nothing has changed then
  MaybeFailure failure;  ///< what went wrong afterwards
};

class CheckedEngine {
 public:
  /// Returns what KvCache::create and create_cuda_step_memory return.
  static Result<std::unique_ptr<CheckedEngine>> create(Device& device, const ServedModel& model,
                                                       const EngineOptions& options);
  /// Returns the bytes of device memory that create takes: the cache_footprint of its cache and, on
  /// a GPU, the memory of verification and the driver's rounding of each allocation. Returns the
  /// failures of cache_footprint.
  static Result<std::int64_t> device_bytes(const Device& device, const ServedModel& model,
                                           const EngineOptions& options);
  /// The same for a device of such facts.
  static Result<std::int64_t> device_bytes(const CacheTarget& target, const ServedModel& model,
                                           const EngineOptions& options);
  static KvCacheOptions cache_options(const ServedModel& model, const EngineOptions& options);
  ~CheckedEngine();
  CheckedEngine(const CheckedEngine&) = delete;
  CheckedEngine& operator=(const CheckedEngine&) = delete;

  // ---- sequences -------------------------------------------------------------------------------

  /// Adds an empty sequence that is to get so many tokens. Its maximum is the model's context.
  /// Returns what KvCache::create_sequence returns.
  Result<Job*> add(std::int64_t prompt_tokens, std::int64_t output_tokens);
  /// Compares the bytes of a sequence, as the mode says.
  MaybeFailure check(const Job& job) { return verifier_->check_sequence(job); }
  /// Destroys a sequence; `job` is gone then.
  MaybeFailure remove(Job& job);
  MaybeFailure finish(Job& job);
  /// Preempts a sequence: it loses its blocks, and its tokens must be computed again. `job` stays
  /// without a sequence until resume.
  MaybeFailure preempt(Job& job);
  /// Gives a preempted job an empty sequence. Returns what KvCache::create_sequence returns.
  Status resume(Job& job);
  /// Returns all sequences, in the order of add.
  std::vector<Job*> jobs() const;

  // ---- steps -----------------------------------------------------------------------------------

  /// One step that grows the rows by their tokens.
  StepOutcome step(std::span<const StepRow> rows, StepWork work, Urgency urgency = Urgency::growth);
  /// As step, where a refusal is a failure.
  MaybeFailure grow(std::span<const StepRow> rows, StepWork work);
  /// Steps of chunks until `job` has `length_tokens` tokens.
  MaybeFailure extend(Job& job, std::int64_t length_tokens, StepWork work);
  /// Steps in which each of `jobs` gets one token.
  MaybeFailure decode(std::span<Job* const> jobs, std::int64_t steps, StepWork work);
  /// The next step is compared, also in the sample mode.
  void verify_next() noexcept { verifier_->verify_next(); }
  /// Runs and destroys a short sequence, so that the device has allocated what it needs at the
  /// first launch of a kernel.
  MaybeFailure warm_up();

  // ---- questions -------------------------------------------------------------------------------

  KvCache& cache() noexcept { return *cache_; }
  const KvCache& cache() const noexcept { return *cache_; }
  Device& device() const noexcept { return device_; }
  const ServedModel& model() const noexcept { return model_; }
  const EngineOptions& options() const noexcept { return options_; }
  /// Results of attention, a token's in a layer each, that the full mode has compared by now.
  std::int64_t results_due() const noexcept { return results_due_; }
  VerificationReport verification() const { return verifier_->report(); }
  /// Returns the blocks for that many tokens of one sequence.
  std::int64_t blocks_of(std::int64_t tokens) const noexcept;

 private:
  CheckedEngine(Device& device, const ServedModel& model, const EngineOptions& options)
      : device_(device), model_(model), options_(options) {}
  Status create_cache();
  Status create_verifier();
  Status touch_pool();

  Device& device_;
  ServedModel model_;
  EngineOptions options_;
  std::optional<KvCache> cache_;
  std::optional<KvVerifier> verifier_;  // behind the cache, which its memory uses
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<AppendDemand> demands_;
  std::int64_t next_index_ = 0;  // sequences are numbered: their content
  std::int64_t results_due_ = 0;
};

/// The weights of the model. Returns what ModelWeights::load returns.
Result<ModelWeights> load_weights(const SuiteOptions& options);

class ServedInstance {
 public:
  /// Loads the weights of `options.model` on `options.device`, then creates the engine. Returns
  /// what ModelWeights::load and CheckedEngine::create return; nothing is left behind then.
  static Result<ServedInstance> create(const SuiteOptions& options, const EngineOptions& engine);

  ModelWeights& weights() noexcept { return weights_; }
  CheckedEngine& engine() noexcept { return *engine_; }

 private:
  ServedInstance(ModelWeights weights, std::unique_ptr<CheckedEngine> engine) noexcept
      : weights_(std::move(weights)), engine_(std::move(engine)) {}

  ModelWeights weights_;
  std::unique_ptr<CheckedEngine> engine_;
};

/// Device bytes that ServedInstance::create takes. Returns what CheckedEngine::device_bytes
/// returns.
Result<std::int64_t> instance_bytes(const SuiteOptions& options, const EngineOptions& engine);

/// The result of the search for the largest engine.
struct LargestPool {
  std::int64_t num_blocks = 0;  ///< with so many an engine was made
  Status refused;               ///< what one block more gave: insufficient_vram
  std::string refused_request;  ///< what was asked for then, in Device::describe's words
  std::int64_t attempts = 0;
};

/// Finds the largest pool by making and destroying engines of `options` and with larger pools.
/// Returns insufficient_vram when even the blocks of `options` do not fit, or any other failure of
/// CheckedEngine::create. O(log blocks) engines.
Result<LargestPool> find_largest_pool(Device& device, const ServedModel& model,
                                      const EngineOptions& options);

}  // namespace kvarena::scenarios
