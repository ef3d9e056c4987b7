#pragma once

/// @file
/// `PressureEngine`: the smallest engine that fills a KvCache with real bytes and holds every
/// result to account: sequences with a prompt and an output, steps of chunks and decodes, K and V
/// made on the device and compared as in a replay (KvVerifier). It has no scheduler: scenarios say
/// which sequences a step grows.
///
/// Borrows the device. Owns cache and sequences. Not movable; one thread at a time.

#include "replay/failure.hpp"
#include "scenarios/pressure_model.hpp"
#include "verify/verifier.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvarena::replay::pressure {

using verify::AttentionMode;
using verify::KvVerifier;
using verify::LayerRange;
using verify::StepRow;
using verify::VerificationReport;

/// A sequence and the length that it is to reach.
struct Job : verify::WrittenSequence {
  std::int64_t final_length = 0;

  /// Whether it has all its tokens.
  bool is_finished() const noexcept { return length == final_length; }
};

/// How large the cache is, and how much of it is verified.
struct PressureEngineOptions {
  PoolSize pool{};                             ///< of the cache
  std::int64_t watermark_blocks = 0;           ///< what admission leaves
  std::int32_t max_sequences = 64;             ///< at a time, and in a step
  std::int64_t max_step_tokens = 128;          ///< new tokens in a step that is not refused
  AttentionMode mode = AttentionMode::sample;  ///< sample or full; see KvVerifier
  std::int64_t sample_every = 16;              ///< steps from one verified one to the next
  LayerRange layers{};                         ///< written and verified; none: all
  bool touch_pool = false;                     ///< commits every page of the pool, and poisons it
  std::int32_t num_threads = 0;                ///< host: of attention; 0: one a core
};

/// What a GPU's driver hands out at a time: cudaMalloc rounds up to it.
inline constexpr std::int64_t kDriverPieceBytes = std::int64_t{2} << 20;
/// Pieces that a driver may keep for its own use: after the instances of allocation-failure an
/// H200's kept 7 and 11.
inline constexpr std::int64_t kDriverPieces = 16;

/// What a step is besides growth.
enum class StepWork : std::uint8_t {
  write,   ///< writes K and V
  attend,  ///< writes, computes attention where the mode says so, and compares
};

/// How a step ended. At most one of the two is set.
struct StepOutcome {
  Status refused;        ///< why append refused; nothing has changed then
  MaybeFailure failure;  ///< what went wrong afterwards
};

/// KvCache, sequences and verification.
class PressureEngine {
 public:
  /// Returns what KvCache::create and create_cuda_step_memory return.
  static Result<std::unique_ptr<PressureEngine>> create(Device& device, const PressureModel& model,
                                                        const PressureEngineOptions& options);
  /// Bytes of device memory that create takes: what cache_footprint says of its cache, and on a GPU
  /// what verification needs and what the driver adds to each allocation. Returns what
  /// cache_footprint returns.
  static Result<std::int64_t> device_bytes(const Device& device, const PressureModel& model,
                                           const PressureEngineOptions& options);
  /// Options of its cache.
  static KvCacheOptions cache_options(const PressureModel& model,
                                      const PressureEngineOptions& options);
  ~PressureEngine();
  PressureEngine(const PressureEngine&) = delete;
  PressureEngine& operator=(const PressureEngine&) = delete;

  // ---- sequences -------------------------------------------------------------------------------

  /// An empty sequence that is to get so many tokens. The model's context is its maximum. Returns
  /// what KvCache::create_sequence returns.
  Result<Job*> add(std::int64_t prompt_tokens, std::int64_t output_tokens);
  /// Compares the bytes of a sequence, as the mode says.
  MaybeFailure check(const Job& job) { return verifier_->check_sequence(job); }
  /// Destroys a sequence; `job` is gone then.
  MaybeFailure remove(Job& job);
  /// check, then remove.
  MaybeFailure finish(Job& job);
  /// Preemption: its blocks go, its tokens are to be computed again. `job` stays, without a
  /// sequence, until resume.
  MaybeFailure preempt(Job& job);
  /// An empty sequence again. Returns what KvCache::create_sequence returns.
  Status resume(Job& job);
  /// All of them, in the order of add.
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
  /// A short sequence comes and goes: what a device allocates at the first launch of a kernel is
  /// there afterwards.
  MaybeFailure warm_up();

  // ---- questions -------------------------------------------------------------------------------

  KvCache& cache() noexcept { return *cache_; }
  const KvCache& cache() const noexcept { return *cache_; }
  Device& device() const noexcept { return device_; }
  const PressureModel& model() const noexcept { return model_; }
  const PressureEngineOptions& options() const noexcept { return options_; }
  /// Results of attention, a token's in a layer each, that the full mode has compared by now.
  std::int64_t results_due() const noexcept { return results_due_; }
  /// What was looked at so far.
  VerificationReport verification() const { return verifier_->report(); }
  /// Blocks for that many tokens of one sequence.
  std::int64_t blocks_of(std::int64_t tokens) const noexcept;

 private:
  PressureEngine(Device& device, const PressureModel& model, const PressureEngineOptions& options)
      : device_(device), model_(model), options_(options) {}
  Status create_cache();
  Status create_verifier();
  Status touch_pool();

  Device& device_;
  PressureModel model_;
  PressureEngineOptions options_;
  std::optional<KvCache> cache_;
  std::optional<KvVerifier> verifier_;  // behind the cache, which its memory uses
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<AppendDemand> demands_;
  std::int64_t next_index_ = 0;  // sequences are numbered: their content
  std::int64_t results_due_ = 0;
};

}  // namespace kvarena::replay::pressure
