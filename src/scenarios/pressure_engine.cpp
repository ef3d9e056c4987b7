#include "scenarios/pressure_engine.hpp"

#include "kvarena/cache/cache_footprint.hpp"

#include <algorithm>
#include <utility>

namespace kvarena::replay::pressure {
namespace {

constexpr std::uint8_t kNotANumber = 0xff;

verify::StepMemoryOptions step_memory_of(const PressureModel& model,
                                         const PressureEngineOptions& options) {
  return {.shape = model.shape,
          .num_q_heads = model.num_q_heads,
          .max_step_tokens = options.max_step_tokens,
          .longest_tokens = model.max_context_tokens,
          .compares_attention = options.mode == AttentionMode::full};
}

}  // namespace

// ---- creation ----------------------------------------------------------------------------------

Result<std::unique_ptr<PressureEngine>> PressureEngine::create(
    Device& device, const PressureModel& model, const PressureEngineOptions& options) {
  std::unique_ptr<PressureEngine> engine(new PressureEngine(device, model, options));
  if (Status s = engine->create_cache(); !s) return s;
  if (Status s = engine->create_verifier(); !s) return s;
  if (options.touch_pool) {
    if (Status s = engine->touch_pool(); !s) return s;
  }
  return engine;
}

Result<std::int64_t> PressureEngine::device_bytes(const Device& device, const PressureModel& model,
                                                  const PressureEngineOptions& options) {
  const Result<CacheTarget> target = target_of(device);
  if (!target) return target.status();
  const auto cache = cache_footprint(cache_options(model, options), *target);
  if (!cache) return cache.status();
  if (device.kind() == DeviceKind::host) return cache->device_bytes();
  return cache->device_bytes() + verify::cuda_step_memory_bytes(step_memory_of(model, options)) +
         (cache->device_allocations + kDriverPieces) * kDriverPieceBytes;
}

KvCacheOptions PressureEngine::cache_options(const PressureModel& model,
                                             const PressureEngineOptions& options) {
  KvCacheOptions cache;
  cache.layout = model.shape;
  cache.size = options.pool;
  cache.num_q_heads = model.num_q_heads;
  cache.max_sequences = options.max_sequences;
  cache.max_sequence_tokens = model.max_context_tokens;
  cache.max_step_tokens = options.max_step_tokens;
  cache.watermark_blocks = options.watermark_blocks;
  cache.num_threads = options.num_threads;
  return cache;
}

Status PressureEngine::create_cache() {
  auto made = KvCache::create(device_, cache_options(model_, options_));
  if (!made) return made.status();
  cache_.emplace(std::move(*made));
  return {};
}

Status PressureEngine::create_verifier() {
  const verify::StepMemoryOptions sizes = step_memory_of(model_, options_);
  std::unique_ptr<verify::StepMemory> memory;
  if (device_.kind() == DeviceKind::host) {
    memory = verify::create_host_step_memory(*cache_, sizes);
  } else {
    auto made = verify::create_cuda_step_memory(device_, *cache_, sizes);
    if (!made) return made.status();
    memory = std::move(*made);
  }
  verifier_.emplace(verify::VerifierOptions{.mode = options_.mode,
                                            .shape = model_.shape,
                                            .num_q_heads = model_.num_q_heads,
                                            .sample_every = options_.sample_every,
                                            .max_step_tokens = options_.max_step_tokens,
                                            .layers = options_.layers},
                    *cache_, std::move(memory));
  return {};
}

Status PressureEngine::touch_pool() {
  const Arena& arena = cache_->arena();
  const Status queued = device_.fill(
      arena.base(), kNotANumber, static_cast<std::uint64_t>(arena.bytes()), cache_->home_stream());
  return queued ? cache_->synchronize() : queued;
}

PressureEngine::~PressureEngine() = default;

// ---- sequences ---------------------------------------------------------------------------------

Result<Job*> PressureEngine::add(std::int64_t prompt_tokens, std::int64_t output_tokens) {
  const Result<SequenceId> sequence =
      cache_->create_sequence({.max_length_tokens = model_.max_context_tokens});
  if (!sequence) return sequence.status();
  auto content = std::make_shared<verify::SequenceContent>();
  content->owner = next_index_++;
  content->prompt_tokens = prompt_tokens;
  auto job = std::make_unique<Job>();
  job->sequence = *sequence;
  job->prefill_length = prompt_tokens;
  job->final_length = prompt_tokens + output_tokens;
  job->stream = {std::move(content), 0};
  jobs_.push_back(std::move(job));
  return jobs_.back().get();
}

MaybeFailure PressureEngine::remove(Job& job) {
  if (job.sequence != kNoSequence) {
    if (Status s = cache_->destroy(job.sequence); !s) return unexpected("destroy", s);
  }
  std::erase_if(jobs_, [&job](const auto& its) { return its.get() == &job; });
  return std::nullopt;
}

MaybeFailure PressureEngine::finish(Job& job) {
  if (auto failure = check(job)) return failure;
  return remove(job);
}

MaybeFailure PressureEngine::preempt(Job& job) {
  const Status status = cache_->destroy(std::exchange(job.sequence, kNoSequence));
  if (!status) return unexpected("destroy", status);
  job.prefill_length = std::max(job.prefill_length, job.length);
  job.length = 0;
  job.stream = job.stream.from_start();
  return std::nullopt;
}

Status PressureEngine::resume(Job& job) {
  const Result<SequenceId> sequence =
      cache_->create_sequence({.max_length_tokens = model_.max_context_tokens});
  if (!sequence) return sequence.status();
  job.sequence = *sequence;
  return {};
}

std::vector<Job*> PressureEngine::jobs() const {
  std::vector<Job*> all;
  for (const auto& job : jobs_) all.push_back(job.get());
  return all;
}

// ---- steps -------------------------------------------------------------------------------------

StepOutcome PressureEngine::step(std::span<const StepRow> rows, StepWork work, Urgency urgency) {
  demands_.clear();
  for (const StepRow& row : rows) demands_.push_back({row.sequence->sequence, row.tokens});
  if (Status s = cache_->begin_step(); !s) return {{}, unexpected("begin_step", s)};
  const Result<StepBatch> batch = cache_->append(demands_, urgency);
  MaybeFailure failure;
  if (batch) {
    const std::int64_t num_layers =
        options_.layers.count > 0 ? options_.layers.count : model_.shape.num_layers;
    for (const StepRow& row : rows) {
      row.sequence->length += row.tokens;
      if (work == StepWork::attend) {
        results_due_ +=
            std::int64_t{std::min(row.tokens, KvVerifier::kComparedQueries)} * num_layers;
      }
    }
    failure = work == StepWork::attend ? verifier_->write_step(rows) : verifier_->write_only(rows);
  }
  const Status ended = cache_->end_step();
  if (!failure && !ended) failure = unexpected("end_step", ended);
  return {batch.status(), std::move(failure)};
}

MaybeFailure PressureEngine::grow(std::span<const StepRow> rows, StepWork work) {
  StepOutcome outcome = step(rows, work);
  if (outcome.refused) return std::move(outcome.failure);
  return ReplayFailure{ReplayEnd::check_failed,
                       "a step was refused: " + cache_->describe(outcome.refused),
                       "room for its tokens", "blocks were lost, or the scenario is wrong"};
}

MaybeFailure PressureEngine::extend(Job& job, std::int64_t length_tokens, StepWork work) {
  while (job.length < length_tokens) {
    const std::int64_t chunk = std::min(options_.max_step_tokens, length_tokens - job.length);
    const StepRow row{&job, static_cast<std::int32_t>(chunk)};
    if (auto failure = grow({&row, 1}, work)) return failure;
  }
  return std::nullopt;
}

MaybeFailure PressureEngine::decode(std::span<Job* const> jobs, std::int64_t steps, StepWork work) {
  std::vector<StepRow> rows;
  for (Job* job : jobs) rows.push_back({job, 1});
  for (std::int64_t i = 0; i < steps; ++i) {
    if (auto failure = grow(rows, work)) return failure;
  }
  return std::nullopt;
}

MaybeFailure PressureEngine::warm_up() {
  const std::int64_t block = model_.shape.block_size_tokens;
  const Result<Job*> job = add(2 * block, 2);
  if (!job) return unexpected("create_sequence", job.status());
  verify_next();
  if (auto failure = extend(**job, std::min(2 * block, options_.max_step_tokens), StepWork::attend))
    return failure;
  Job* const one = *job;
  verify_next();
  if (auto failure = decode({&one, 1}, 2, StepWork::attend)) return failure;
  return finish(*one);
}

std::int64_t PressureEngine::blocks_of(std::int64_t tokens) const noexcept {
  const std::int64_t block = model_.shape.block_size_tokens;
  return (tokens + block - 1) / block;
}

}  // namespace kvarena::replay::pressure
