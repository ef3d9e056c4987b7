#include "scenarios/engine.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace kvarena::scenarios {
namespace {

constexpr std::uint8_t kNotANumber = 0xff;

verify::StepMemoryOptions step_memory_of(const ServedModel& model, const EngineOptions& options) {
  return {.shape = model.shape,
          .num_q_heads = model.num_q_heads,
          .max_step_tokens = options.max_step_tokens,
          .longest_tokens = model.max_context_tokens,
          .compares_attention = options.mode == AttentionMode::full};
}

/// The line of a failed allocation's description that says what was asked for, and what for.
std::string request_of(const std::string& description) {
  constexpr std::string_view kBegin = "requested: ";
  const std::size_t begin = description.find(kBegin);
  if (begin == std::string::npos) return description;
  const std::size_t end = description.find('\n', begin);
  return description.substr(begin + kBegin.size(), end - begin - kBegin.size());
}

}  // namespace

// ---- creation ----------------------------------------------------------------------------------

Result<std::unique_ptr<CheckedEngine>> CheckedEngine::create(Device& device,
                                                             const ServedModel& model,
                                                             const EngineOptions& options) {
  std::unique_ptr<CheckedEngine> engine(new CheckedEngine(device, model, options));
  if (Status s = engine->create_cache(); !s) return s;
  if (Status s = engine->create_verifier(); !s) return s;
  if (options.touch_pool) {
    if (Status s = engine->touch_pool(); !s) return s;
  }
  return engine;
}

Result<std::int64_t> CheckedEngine::device_bytes(const Device& device, const ServedModel& model,
                                                 const EngineOptions& options) {
  const Result<CacheTarget> target = target_of(device);
  if (!target) return target.status();
  return device_bytes(*target, model, options);
}

Result<std::int64_t> CheckedEngine::device_bytes(const CacheTarget& target,
                                                 const ServedModel& model,
                                                 const EngineOptions& options) {
  const auto cache = cache_footprint(cache_options(model, options), target);
  if (!cache) return cache.status();
  if (target.kind == DeviceKind::host) return cache->device_bytes();
  return cache->device_bytes() + verify::cuda_step_memory_bytes(step_memory_of(model, options)) +
         (cache->device_allocations + kDriverPieces) * kDriverPieceBytes;
}

KvCacheOptions CheckedEngine::cache_options(const ServedModel& model,
                                            const EngineOptions& options) {
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

Status CheckedEngine::create_cache() {
  auto made = KvCache::create(device_, cache_options(model_, options_));
  if (!made) return made.status();
  cache_.emplace(std::move(*made));
  return {};
}

Status CheckedEngine::create_verifier() {
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

Status CheckedEngine::touch_pool() {
  const Arena& arena = cache_->arena();
  const Status queued = device_.fill(arena.base(), kNotANumber,
                                     static_cast<std::uint64_t>(arena.bytes()), cache_->stream());
  return queued ? cache_->synchronize() : queued;
}

CheckedEngine::~CheckedEngine() = default;

// ---- sequences ---------------------------------------------------------------------------------

Result<Job*> CheckedEngine::add(std::int64_t prompt_tokens, std::int64_t output_tokens) {
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

MaybeFailure CheckedEngine::remove(Job& job) {
  if (job.sequence != kNoSequence) {
    if (Status s = cache_->destroy(job.sequence); !s) return unexpected("destroy", s);
  }
  std::erase_if(jobs_, [&job](const auto& its) { return its.get() == &job; });
  return std::nullopt;
}

MaybeFailure CheckedEngine::finish(Job& job) {
  if (auto failure = check(job)) return failure;
  return remove(job);
}

MaybeFailure CheckedEngine::preempt(Job& job) {
  const Status status = cache_->destroy(std::exchange(job.sequence, kNoSequence));
  if (!status) return unexpected("destroy", status);
  job.prefill_length = std::max(job.prefill_length, job.length);
  job.length = 0;
  job.stream = job.stream.from_start();
  return std::nullopt;
}

Status CheckedEngine::resume(Job& job) {
  const Result<SequenceId> sequence =
      cache_->create_sequence({.max_length_tokens = model_.max_context_tokens});
  if (!sequence) return sequence.status();
  job.sequence = *sequence;
  return {};
}

std::vector<Job*> CheckedEngine::jobs() const {
  std::vector<Job*> all;
  for (const auto& job : jobs_) all.push_back(job.get());
  return all;
}

// ---- steps -------------------------------------------------------------------------------------

StepOutcome CheckedEngine::step(std::span<const StepRow> rows, StepWork work, Urgency urgency) {
  if (is_stopped(options_.stop)) return {{}, interruption()};
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

MaybeFailure CheckedEngine::grow(std::span<const StepRow> rows, StepWork work) {
  StepOutcome outcome = step(rows, work);
  if (outcome.refused) return std::move(outcome.failure);
  return Failure{RunEnd::check_failed,
                 {.found = "a step was refused: " + cache_->describe(outcome.refused),
                  .expected = "room for its tokens",
                  .advice = "blocks were lost, or the scenario is wrong"}};
}

MaybeFailure CheckedEngine::extend(Job& job, std::int64_t length_tokens, StepWork work) {
  while (job.length < length_tokens) {
    const std::int64_t chunk = std::min(options_.max_step_tokens, length_tokens - job.length);
    const StepRow row{&job, static_cast<std::int32_t>(chunk)};
    if (auto failure = grow({&row, 1}, work)) return failure;
  }
  return std::nullopt;
}

MaybeFailure CheckedEngine::decode(std::span<Job* const> jobs, std::int64_t steps, StepWork work) {
  std::vector<StepRow> rows;
  for (Job* job : jobs) rows.push_back({job, 1});
  for (std::int64_t i = 0; i < steps; ++i) {
    if (auto failure = grow(rows, work)) return failure;
  }
  return std::nullopt;
}

MaybeFailure CheckedEngine::warm_up() {
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

std::int64_t CheckedEngine::blocks_of(std::int64_t tokens) const noexcept {
  const std::int64_t block = model_.shape.block_size_tokens;
  return (tokens + block - 1) / block;
}

Result<ModelWeights> load_weights(const SuiteOptions& options) {
  return ModelWeights::load(*options.device, {.bytes = options.model.weights_bytes,
                                              .piece_bytes = options.sizes.weights_piece_bytes,
                                              .stop = options.stop});
}

Result<ServedInstance> ServedInstance::create(const SuiteOptions& options,
                                              const EngineOptions& engine) {
  Result<ModelWeights> weights = load_weights(options);
  if (!weights) return weights.status();
  auto made = CheckedEngine::create(*options.device, options.model, engine);
  if (!made) return made.status();
  return ServedInstance(std::move(*weights), std::move(*made));
}

Result<std::int64_t> instance_bytes(const SuiteOptions& options, const EngineOptions& engine) {
  const auto bytes = CheckedEngine::device_bytes(*options.device, options.model, engine);
  if (!bytes) return bytes.status();
  return options.model.weights_bytes + *bytes;
}

Result<LargestPool> find_largest_pool(Device& device, const ServedModel& model,
                                      const EngineOptions& options) {
  const std::int64_t least_blocks = options.pool.num_blocks;
  const Result<KvLayout> layout = KvLayout::create(model.shape);
  if (!layout) return layout.status();
  const Result<MemoryInfo> memory = device.memory_info();
  if (!memory) return memory.status();
  LargestPool found;
  const auto attempt = [&](std::int64_t num_blocks) -> Status {
    EngineOptions sized = options;
    sized.pool = {.num_blocks = num_blocks};
    ++found.attempts;
    return CheckedEngine::create(device, model, sized).status();
  };
  if (Status s = attempt(least_blocks); !s) return s;
  found.num_blocks = least_blocks;
  // The first that cannot fit: its pool alone is more than what is free.
  std::int64_t too_many = std::max(
      least_blocks + 1, static_cast<std::int64_t>(memory->free_bytes) / layout->block_bytes() + 1);
  while (too_many - found.num_blocks > 1 || found.refused.is_ok()) {
    const std::int64_t middle = too_many - found.num_blocks > 1
                                    ? found.num_blocks + (too_many - found.num_blocks) / 2
                                    : too_many;
    const Status status = attempt(middle);
    if (status) {
      found.num_blocks = middle;
      too_many = std::max(too_many, middle + 1);
    } else if (status.code == StatusCode::insufficient_vram) {
      too_many = middle;
      found.refused = status;
      found.refused_request = request_of(device.describe(status));
    } else {
      return status;
    }
  }
  return found;
}

}  // namespace kvarena::scenarios
