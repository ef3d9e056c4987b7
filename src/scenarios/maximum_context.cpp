// Scenario 1: the longest context that the model was made for.

#include "scenarios/checks.hpp"
#include "scenarios/memory_reading.hpp"
#include "scenarios/suite.hpp"

#include <fmt/format.h>

namespace kvarena::scenarios {
namespace {

// The host computes and compares attention in every so many steps.
constexpr std::int64_t kSampleEvery = 4;
constexpr std::int64_t kResidencySteps = 10;

MaybeFailure generate(const ScenarioContext& context, CheckedEngine& engine, Job& job,
                      ScenarioReport& report, MemoryTable& memory) {
  const std::int64_t longest = context.model().max_context_tokens;
  Job* const one = &job;
  context.progress(fmt::format("prefill of {} tokens", job.prefill_length));
  if (auto failure = engine.extend(job, job.prefill_length, StepWork::attend)) return failure;
  if (auto failure = memory.read({job.length}, context.device())) return failure;
  const Arena& arena = engine.cache().arena();
  if (auto failure = expect_resident(report, "before decode", context.device(), arena)) {
    return failure;
  }
  const std::int64_t first = std::min(kResidencySteps, longest - job.length);
  if (auto failure = engine.decode({&one, 1}, first, StepWork::attend)) return failure;
  if (auto failure = expect_resident(report, fmt::format("after {} decode steps", first),
                                     context.device(), arena)) {
    return failure;
  }
  context.progress(fmt::format("decode up to {} tokens", longest));
  if (auto failure = engine.decode({&one, 1}, longest - 1 - job.length, StepWork::attend)) {
    return failure;
  }
  engine.verify_next();  // the last token sees the whole context
  if (auto failure = engine.decode({&one, 1}, 1, StepWork::attend)) return failure;
  return memory.read({job.length}, context.device());
}

MaybeFailure refuse(const ScenarioContext& context, CheckedEngine& engine, Job& job,
                    ScenarioReport& report) {
  const std::int64_t longest = context.model().max_context_tokens;
  const PoolState full = pool_state(engine);
  const StepRow one_more{&job, 1};
  StepOutcome outcome = engine.step({&one_more, 1}, StepWork::attend);
  if (outcome.failure) return std::move(outcome.failure);
  expect_too_long(report, "one token past the context", outcome.refused, longest + 1, longest);
  expect_unchanged(report, "state after that refusal", full, engine);

  const std::int64_t overlong = longest + context.sizes().overlong_tokens;
  const Result<Job*> second = engine.add(overlong, 0);
  if (!second) return unexpected("create_sequence", second.status());
  const PoolState before = pool_state(engine);
  const StepRow whole{*second, static_cast<std::int32_t>(overlong)};
  outcome = engine.step({&whole, 1}, StepWork::attend);
  if (outcome.failure) return std::move(outcome.failure);
  expect_too_long(report, fmt::format("a prompt of {} tokens, whole", overlong), outcome.refused,
                  overlong, longest);
  expect_unchanged(report, "state after the whole prompt's refusal", before, engine);
  return engine.remove(**second);
}

/// A block more than the context needs: what is refused is not for want of blocks.
EngineOptions engine_of(const ScenarioContext& context) {
  return {.pool = {.num_blocks = context_blocks(context.model()) + 1},
          .max_step_tokens = context.sizes().chunk_tokens,
          .mode = context.on_gpu() ? AttentionMode::full : AttentionMode::sample,
          .sample_every = kSampleEvery,
          .num_threads = context.options.num_threads,
          .stop = context.options.stop};
}

MaybeFailure run(const ScenarioContext& context, ScenarioReport& report) {
  const std::int64_t longest = context.model().max_context_tokens;
  auto instance = ServedInstance::create(context.options, engine_of(context));
  if (!instance) return not_created(context, instance.status());
  CheckedEngine& engine = instance->engine();
  const std::int64_t decoded = context.sizes().decode_tokens;
  const Result<Job*> job = engine.add(longest - decoded, decoded);
  if (!job) return unexpected("create_sequence", job.status());
  MemoryTable memory({"tokens"});
  if (auto failure = memory.read({0}, context.device())) return failure;
  if (auto failure = generate(context, engine, **job, report, memory)) return failure;

  const auto info = engine.cache().tables().info((*job)->sequence);
  if (!info) return unexpected("info", info.status());
  report.add("max_context_tokens", longest);
  report.add("prefill_tokens", longest - decoded);
  report.add("decode_tokens", decoded);
  report.add("blocks", info->num_blocks);
  report.expect_equal("length reached", longest, info->length_tokens);
  report.expect_equal("blocks held", engine.blocks_of(longest), info->num_blocks);
  if (auto failure = refuse(context, engine, **job, report)) return failure;
  if (auto failure = engine.finish(**job)) return failure;
  if (auto failure = memory.read({0}, context.device())) return failure;
  report.add("memory", memory.table());
  expect_verified(report, engine, due_on_gpu(context, engine));
  expect_idle(report, engine);
  return expect_weights_intact(report, instance->weights());
}

}  // namespace

Scenario maximum_context() {
  return {"maximum-context", "The longest context, and what is refused past it", run,
          [](const ScenarioContext& context) {
            return instance_bytes(context.options, engine_of(context));
          }};
}

}  // namespace kvarena::scenarios
