// Scenario 3: the device filled to the last block that fits, over and over.

#include "scenarios/checks.hpp"
#include "scenarios/engine.hpp"
#include "scenarios/memory_reading.hpp"
#include "scenarios/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::scenarios {
namespace {

/// An engine of as many blocks as the context needs.
EngineOptions engine_of(const ScenarioContext& context) {
  return {.pool = {.num_blocks = context_blocks(context.model())},
          .max_sequences = 8192,
          .max_step_tokens = std::max<std::int64_t>(context.sizes().chunk_tokens, 1024),
          .mode = context.on_gpu() ? AttentionMode::full : AttentionMode::sample,
          .sample_every = 4,
          .num_threads = context.options.num_threads,
          .stop = context.options.stop};
}

class NearFull {
 public:
  NearFull(const ScenarioContext& context, ScenarioReport& report)
      : context_(context),
        report_(report),
        engine_(engine_of(context)),
        memory_({"round", "blocks_in_use"}) {
    const auto block = context.model().shape.block_size_tokens;
    // A sequence decodes into its last block, which is why it fills up there.
    decoded_ = std::min<std::int64_t>(context.sizes().decode_steps, block - 1);
  }

  MaybeFailure run() {
    Result<ModelWeights> weights = load_weights(context_.options);
    if (!weights) return not_created(context_, weights.status());
    weights_.emplace(std::move(*weights));
    if (auto failure = find()) return failure;
    for (std::int64_t round = 1; round <= context_.sizes().full_rounds; ++round) {
      context_.progress(fmt::format("round {}: {} blocks", round, found_.num_blocks));
      if (auto failure = run_round(round)) return failure;
    }
    report_.add("memory", memory_.table());
    return std::nullopt;
  }

 private:
  MaybeFailure find() {
    if (auto failure = warm_up(context_, engine_)) return failure;
    const Result<LargestPool> found =
        find_largest_pool(context_.device(), context_.model(), engine_);
    if (!found) return not_created(context_, found.status());
    found_ = *found;
    report_.add("largest_pool_blocks", found_.num_blocks);
    report_.add("pools_tried", found_.attempts);
    // Memory that the driver gives in pieces may not do although as many bytes are free.
    report_.add("one_block_more_required_bytes",
                static_cast<std::int64_t>(found_.refused.required));
    report_.add("one_block_more_available_bytes",
                static_cast<std::int64_t>(found_.refused.available));
    report_.add("one_block_more_refused_request", found_.refused_request);
    report_.expect_same("one block more", std::string(name_of(StatusCode::insufficient_vram)),
                        std::string(name_of(found_.refused.code)));
    return std::nullopt;
  }

  // A driver keeps a little of what it took in the first round, for its own use: that is a figure,
  // and from then on every byte comes back.
  MaybeFailure run_round(std::int64_t round) {
    const Result<MemoryReading> before = read_memory(context_.device());
    if (!before) return unexpected("memory_info", before.status());
    if (auto failure = fill_and_release(round)) return failure;
    const Result<MemoryReading> after = read_memory(context_.device());
    if (!after) return unexpected("memory_info", after.status());
    memory_.add({round, 0}, *after);
    if (round == 1) {
      const std::int64_t kept = before->driver_free - after->driver_free;
      report_.add("round_1_driver_kept_bytes", kept);
      report_.expect_at_most("round 1: " + what_driver_keeps(context_), driver_may_keep(context_),
                             kept);
      first_ = *after;
    }
    report_.expect_equal(fmt::format("round {}: free bytes after release", round),
                         first_.driver_free, after->driver_free);
    report_.expect_equal(fmt::format("round {}: tracked bytes after release", round),
                         before->tracked, after->tracked);
    return std::nullopt;
  }

  MaybeFailure fill_and_release(std::int64_t round) {
    EngineOptions options = engine_;
    options.pool = {.num_blocks = found_.num_blocks};
    auto made = CheckedEngine::create(context_.device(), context_.model(), options);
    if (!made) return not_created(context_, made.status());
    CheckedEngine& engine = **made;
    const Result<MemoryReading> created = read_memory(context_.device());
    if (!created) return unexpected("memory_info", created.status());
    memory_.add({round, 0}, *created);
    report_.add(fmt::format("round_{}_headroom_bytes", round), created->driver_free);
    if (auto failure = fill(engine)) return failure;
    const BlockStats stats = engine.cache().manager().stats();
    if (auto failure = memory_.read({round, stats.referenced}, context_.device())) return failure;
    report_.expect_equal(fmt::format("round {}: blocks in use", round), found_.num_blocks,
                         stats.referenced);
    if (auto failure = refuse_one_more(engine, round)) return failure;
    for (Job* job : engine.jobs()) {
      if (auto failure = engine.finish(*job)) return failure;
    }
    if (round == context_.sizes().full_rounds) {
      expect_verified(report_, engine, due_on_gpu(context_, engine));
    }
    expect_idle(report_, engine);
    return expect_weights_intact(report_, *weights_);
  }

  // Prompts are written without attention, which nothing would look at; then all decode, as many
  // at a time as a step takes.
  MaybeFailure fill(CheckedEngine& engine) {
    const std::int64_t block = context_.model().shape.block_size_tokens;
    std::int64_t left = found_.num_blocks;
    while (left > 0) {
      const std::int64_t blocks = std::min(left, context_.model().max_context_tokens / block);
      const std::int64_t tokens = blocks * block;
      const Result<Job*> job = engine.add(tokens - decoded_, decoded_);
      if (!job) return unexpected("create_sequence", job.status());
      if (auto failure = engine.extend(**job, tokens - decoded_, StepWork::write)) return failure;
      left -= blocks;
    }
    engine.verify_next();
    const std::vector<Job*> jobs = engine.jobs();
    const auto most = static_cast<std::size_t>(engine_.max_step_tokens);
    for (std::span<Job* const> rest = jobs; !rest.empty();) {
      const auto group = rest.first(std::min(most, rest.size()));
      if (auto failure = engine.decode(group, decoded_, StepWork::attend)) return failure;
      rest = rest.subspan(group.size());
    }
    return std::nullopt;
  }

  MaybeFailure refuse_one_more(CheckedEngine& engine, std::int64_t round) {
    const Result<Job*> job = engine.add(1, 0);
    if (!job) return unexpected("create_sequence", job.status());
    const PoolState before = pool_state(engine);
    const StepRow row{*job, 1};
    StepOutcome outcome = engine.step({&row, 1}, StepWork::write);
    if (outcome.failure) return std::move(outcome.failure);
    expect_exhausted(report_, fmt::format("round {}: a block more", round), outcome.refused, 1, 0);
    expect_unchanged(report_, fmt::format("round {}: state after that", round), before, engine);
    return engine.remove(**job);
  }

  const ScenarioContext& context_;
  ScenarioReport& report_;
  EngineOptions engine_;
  std::optional<ModelWeights> weights_;  // loaded once: the rounds are the cache's
  std::int64_t decoded_ = 0;
  LargestPool found_;
  MemoryReading first_;  // after round 1
  MemoryTable memory_;
};

MaybeFailure run(const ScenarioContext& context, ScenarioReport& report) {
  return NearFull(context, report).run();
}

}  // namespace

Scenario near_full() {
  return {"near-full", "Filled to the last block that fits", run,
          [](const ScenarioContext& context) {
            return instance_bytes(context.options, engine_of(context));
          }};
}

}  // namespace kvarena::scenarios
