#include "replay/engine_pool.hpp"

#include "kvarena/base/clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvarena::replay {
namespace {

// Sequences that are created before others are destroyed within a step: none, but fork needs its
// parent while the child is made.
constexpr std::int64_t kSpareSequences = 8;
// A step without bytes takes less than a microsecond, of which a publication would be a third.
constexpr std::uint64_t kStepsPerPublication = 16;
constexpr std::int64_t kMaxSequences = std::int64_t{1} << 24;
constexpr std::int64_t kMaxBatchBlocks = std::int64_t{1} << 28;
constexpr std::int64_t kMaxSequenceTokens = std::int64_t{1} << 30;

std::int64_t watermark_of(const ReplayOptions& options, std::int64_t num_blocks, bool unlimited) {
  if (options.pool.watermark_blocks) return *options.pool.watermark_blocks;
  if (unlimited || options.reserve == Reserve::full) return 0;
  return num_blocks * options.pool.watermark_permille / 1000;
}

bool is_unlimited(const ReplayPool& pool) noexcept { return !pool.num_blocks && !pool.pool_bytes; }

std::int64_t max_sequences_of(const TraceSurvey& survey) {
  return std::min(survey.worst_sequences + kSpareSequences, kMaxSequences);
}

// Tokens up to which a sequence's table goes: what its request asks for, rounded up to blocks, and
// what is promised to forks through their parent.
std::int64_t max_table_blocks_of(const verify::StepMemoryOptions& memory, std::int32_t samples) {
  return blocks_for(memory.longest_tokens, memory.shape.block_size_tokens) * samples + 1;
}

ReplayFailure pool_failure(const char* what, const Status& status, std::string text) {
  const bool options_wrong =
      (status.code == StatusCode::invalid_argument && status.resource != Resource::pool_bytes) ||
      status.code == StatusCode::unsupported;
  return {
      options_wrong ? ReplayEnd::bad_options : ReplayEnd::does_not_fit,
      {.found = fmt::format("{}: {}", what, text),
       .advice = options_wrong
                     ? "change the number of blocks, their size, the watermark or the model shape"
                     : "give a smaller pool, choose a smaller model shape, or turn attention off, "
                       "which needs no memory for KV"}};
}

}  // namespace

MaybeFailure EnginePool::create(const ReplayOptions& options, const TraceSurvey& survey,
                                std::unique_ptr<EnginePool>* pool) {
  const UniformLayoutOptions& shape = options.attention.shape;
  std::unique_ptr<EnginePool> made(new EnginePool);
  auto units = PoolUnits::create(options);
  if (!units) return pool_failure("the model's groups", units.status(), describe(units.status()));
  made->units_ = std::move(*units);
  made->groups_ = options.groups;
  std::int64_t num_blocks = options.pool.num_blocks.value_or(survey.worst_blocks);
  if (options.pool.pool_bytes) {
    std::int64_t unit_bytes = 0;
    if (auto failure = made->measure_unit(shape, &unit_bytes)) return failure;
    num_blocks = *options.pool.pool_bytes / unit_bytes;
    if (num_blocks == 0) {
      return ReplayFailure{ReplayEnd::does_not_fit,
                           {.found = fmt::format("a pool of {} bytes does not hold one {}",
                                                 *options.pool.pool_bytes, made->units_->name()),
                            .expected = fmt::format("at least {} bytes", unit_bytes),
                            .advice = "give the pool more bytes, or blocks fewer tokens"}};
    }
  }
  made->block_size_ = shape.block_size_tokens;
  made->has_prefix_cache_ = options.prefix_cache;
  auto failure = options.attention.mode == AttentionMode::off
                     ? made->create_tables(options, survey, num_blocks)
                     : made->create_cache(options, survey, num_blocks);
  if (failure) return failure;
  *pool = std::move(made);
  return std::nullopt;
}

MaybeFailure EnginePool::measure_unit(const UniformLayoutOptions& shape,
                                      std::int64_t* unit_bytes) const {
  if (units_->has_groups()) {
    *unit_bytes = units_->page_bytes();
    return std::nullopt;
  }
  const auto layout = KvLayout::create(shape);
  if (!layout) return pool_failure("the model shape", layout.status(), describe(layout.status()));
  *unit_bytes = layout->block_bytes();
  return std::nullopt;
}

MaybeFailure EnginePool::create_tables(const ReplayOptions& options, const TraceSurvey& survey,
                                       std::int64_t num_blocks) {
  const bool unlimited = is_unlimited(options.pool);
  const std::int64_t sequences =
      std::min(max_sequences_of(survey), num_blocks * options.samples + kSpareSequences);
  BlockManagerOptions blocks;
  blocks.num_blocks = num_blocks;
  blocks.watermark_blocks = watermark_of(options, num_blocks, unlimited);
  blocks.max_holders = static_cast<std::int32_t>(sequences + kSpareSequences);
  blocks.max_fence_entries = 1;
  if (has_prefix_cache_) blocks.eviction = options.policy;
  if (units_->has_groups()) blocks.groups = units_->groups().blocks;
  auto manager = BlockManager::create(blocks);
  if (!manager) {
    return pool_failure("the block manager", manager.status(), describe(manager.status()));
  }
  manager_.emplace(std::move(*manager));
  BlockTablesOptions tables;
  tables.block_size_tokens = block_size_;
  tables.max_sequences = static_cast<std::int32_t>(sequences);
  tables.prefix_cache.is_on = has_prefix_cache_;
  tables.max_append_tokens = std::max(tables.max_append_tokens, options.limits.max_batched_tokens);
  if (units_->has_groups()) {
    tables.groups = units_->groups().tables;
    tables.can_undo = true;  // as a cache, which holds a step's old states until its end
    tables.checkpoint_every_tokens = groups_.checkpoint_every_tokens;
  }
  auto made = BlockTables::create(*manager_, tables);
  if (!made) return pool_failure("the block tables", made.status(), describe(made.status()));
  tables_.emplace(std::move(*made));
  auto publisher = StepPublisher::create(*manager_, *tables_);
  if (!publisher) {
    return pool_failure("the publisher", publisher.status(), describe(publisher.status()));
  }
  publisher_.emplace(std::move(*publisher));
  return std::nullopt;
}

// Free memory of a GPU, less what steps need and a part for kernels and the cache's own tables.
MaybeFailure EnginePool::fit_unlimited(const ReplayOptions& options, const TraceSurvey& survey,
                                       std::int64_t* num_blocks) {
  constexpr std::int64_t kSparePart = 16;
  const auto memory = device_->memory_info();
  if (!memory) return unexpected("memory_info", memory.status());
  std::int64_t unit_bytes = 0;
  if (auto failure = measure_unit(step_memory_.shape, &unit_bytes)) return failure;
  const auto free_bytes = static_cast<std::int64_t>(memory->free_bytes);
  const std::int64_t tables =
      max_sequences_of(survey) * max_table_blocks_of(step_memory_, options.samples) * 4;
  const std::int64_t usable =
      free_bytes - free_bytes / kSparePart - verify::cuda_step_memory_bytes(step_memory_) - tables;
  const std::int64_t fitting = usable / unit_bytes;
  if (fitting >= *num_blocks) return std::nullopt;
  if (fitting < 1) {
    return ReplayFailure{
        ReplayEnd::does_not_fit,
        {.found = fmt::format("{} has {} bytes free, of which a pool can have none",
                              device_->name(), free_bytes),
         .expected = fmt::format("room for steps ({} bytes), tables ({} bytes) and blocks",
                                 verify::cuda_step_memory_bytes(step_memory_), tables),
         .advice = "lower the batched tokens or the running sequences, or choose a smaller model"}};
  }
  worst_case_blocks_ = std::exchange(*num_blocks, fitting);
  return std::nullopt;
}

MaybeFailure EnginePool::create_cache(const ReplayOptions& options, const TraceSurvey& survey,
                                      std::int64_t num_blocks) {
  device_ = options.attention.device;
  step_memory_ = {.shape = options.attention.shape,
                  .num_q_heads = options.attention.num_q_heads,
                  .max_step_tokens = options.limits.max_batched_tokens,
                  // What is longer than the pool is rejected.
                  .longest_tokens = units_->has_groups()
                                        ? std::min(survey.longest_tokens, kMaxSequenceTokens)
                                        : std::min(survey.longest_tokens, num_blocks * block_size_),
                  .compares_attention = options.attention.mode == AttentionMode::full};
  const bool on_gpu = device_->kind() == DeviceKind::cuda;
  if (on_gpu && is_unlimited(options.pool)) {
    if (auto failure = fit_unlimited(options, survey, &num_blocks)) return failure;
  }
  const bool unlimited = is_unlimited(options.pool) && worst_case_blocks_ == 0;
  KvCacheOptions cache;
  cache.layout = options.attention.shape;
  cache.size.num_blocks = num_blocks;
  cache.num_q_heads = options.attention.num_q_heads;
  cache.max_sequences = static_cast<std::int32_t>(max_sequences_of(survey));
  cache.max_step_tokens = options.limits.max_batched_tokens;
  cache.max_batch_blocks = num_blocks * std::max(4, options.samples);
  cache.watermark_blocks = watermark_of(options, num_blocks, unlimited);
  cache.num_threads = options.attention.num_threads;
  cache.prefix_cache.is_on = has_prefix_cache_;
  if (has_prefix_cache_) cache.eviction = options.policy;
  // A table on a GPU has its full length from the start.
  const std::int64_t table_blocks = max_table_blocks_of(step_memory_, options.samples);
  if (units_->has_groups()) {
    // Samples of a request share blocks, each with entries of its own.
    cache.max_batch_blocks =
        options.samples <= 4 ? 0 : std::min(cache.max_sequences * table_blocks, kMaxBatchBlocks);
    cache.groups = groups_.list;
    cache.page_sequence_tokens = groups_.page_sequence_tokens;
    cache.checkpoint_every_tokens = groups_.checkpoint_every_tokens;
    cache.max_sequence_tokens = table_blocks * block_size_;
  }
  if (on_gpu && !units_->has_groups() && table_blocks < num_blocks) {
    cache.max_sequence_tokens = table_blocks * options.attention.shape.block_size_tokens;
  }
  auto made = KvCache::create(*device_, cache);
  if (!made) return pool_failure("the KV cache", made.status(), device_->describe(made.status()));
  cache_.emplace(std::move(*made));
  return std::nullopt;
}

MaybeFailure EnginePool::create_step_memory(std::unique_ptr<verify::StepMemory>* memory) {
  if (device_->kind() == DeviceKind::host) {
    *memory = verify::create_host_step_memory(*cache_, step_memory_);
    return std::nullopt;
  }
  auto made = verify::create_cuda_step_memory(*device_, *cache_, step_memory_);
  if (!made) {
    return pool_failure("memory for steps", made.status(), device_->describe(made.status()));
  }
  *memory = std::move(*made);
  return std::nullopt;
}

Result<SequenceId> EnginePool::create_sequence(std::uint64_t owner, std::uint64_t salt,
                                               std::span<const std::int32_t> tokens) {
  const SequenceOptions options{
      .since_ns = steady_clock().now_ns(), .owner = owner, .tokens = tokens, .salt = salt};
  return cache_ ? cache_->create_sequence(options) : tables_->create_sequence(options);
}

Result<SequenceId> EnginePool::fork(SequenceId parent, std::int64_t length_tokens) {
  const SequenceOptions options{.since_ns = steady_clock().now_ns()};
  return cache_ ? cache_->fork(parent, length_tokens, options)
                : tables_->fork(parent, length_tokens, options);
}

Status EnginePool::destroy(SequenceId sequence) {
  return cache_ ? cache_->destroy(sequence) : tables_->destroy(sequence);
}

Status EnginePool::truncate(SequenceId sequence, std::int64_t length_tokens) {
  return cache_ ? cache_->truncate(sequence, length_tokens)
                : tables_->truncate(sequence, length_tokens);
}

Status EnginePool::reserve_capacity(SequenceId sequence, std::int64_t capacity_tokens) {
  if (units_->has_groups()) return promise_capacity(sequence, capacity_tokens);
  return cache_ ? cache_->reserve_capacity(sequence, capacity_tokens)
                : tables_->reserve_capacity(sequence, capacity_tokens);
}

Status EnginePool::promise_capacity(SequenceId sequence, std::int64_t capacity_tokens) {
  return cache_ ? cache_->promise_capacity(sequence, capacity_tokens)
                : tables_->promise_capacity(sequence, capacity_tokens);
}

Status EnginePool::begin_step() {
  if (cache_) return cache_->begin_step();
  if (!std::exchange(publication_pending_, true)) publisher_->begin_step();
  return {};
}

// What the step computes is there for whoever comes after it.
void EnginePool::publish_grown() {
  for (const SequenceId sequence : grown_) static_cast<void>(tables_->publish(sequence));
  grown_.clear();
}

void EnginePool::settle() noexcept {
  if (!cache_ && units_->has_groups()) tables_->settle_append();
}

Status EnginePool::end_step() {
  if (!cache_) publish_grown();
  settle();
  if (cache_) return cache_->end_step();
  return ++steps_ended_ % kStepsPerPublication == 0 ? publish() : Status{};
}

Status EnginePool::publish() {
  if (cache_) return cache_->publish();
  publisher_->publish({.steps_ended = steps_ended_});
  publication_pending_ = false;
  return {};
}

Status EnginePool::append(std::span<const AppendDemand> demands) {
  if (has_prefix_cache_ && !cache_) {
    for (const AppendDemand& demand : demands) grown_.push_back(demand.sequence);
  }
  if (!cache_) return tables_->append(demands).status();
  const Result<StepBatch> batch = cache_->append(demands);
  states_ = batch ? batch->states : std::span<const StateSlots>();
  return batch.status();
}

Status EnginePool::check_invariants() const {
  if (cache_) return cache_->check_invariants();
  const Status status = manager_->check_invariants();
  return status ? tables_->check_invariants() : status;
}

}  // namespace kvarena::replay
