// Scenario 6: batches of 1, 4, 64 and as many as fit, of mixed lengths; then three times more work
// than fits. Every result is compared.

#include "replay/pressure/overload.hpp"
#include "replay/pressure/plane_residency.hpp"
#include "replay/pressure/scenario_checks.hpp"
#include "replay/pressure/scenarios.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace kvarena::replay::pressure {
namespace {

constexpr std::int32_t kMostSequences = 4096;
constexpr std::int64_t kDecodeSteps = 3;

class Concurrency {
 public:
  Concurrency(const PressureContext& context, ScenarioReport& report)
      : context_(context),
        report_(report),
        random_(static_cast<std::uint64_t>(context.options.seed)),
        longest_(std::min(
            context.on_gpu() ? context.sizes().gpu_batch_tokens : context.sizes().batch_tokens,
            context.model().max_context_tokens)) {}

  MaybeFailure run() {
    const Result<ModelWeights> weights = ModelWeights::load(
        context_.device(), {.bytes = context_.model().weights_bytes,
                            .piece_bytes = context_.sizes().weights_piece_bytes});
    if (!weights) return not_created(context_.options, weights.status());
    if (auto failure = run_batches()) return failure;
    if (auto failure = run_overload()) return failure;
    return expect_weights_intact(report_, *weights);
  }

 private:
  PressureEngineOptions options_for(std::int64_t num_blocks) const {
    return {.pool = {.num_blocks = num_blocks},
            .max_sequences =
                static_cast<std::int32_t>(std::min<std::int64_t>(num_blocks + 1, kMostSequences)),
            .max_step_tokens =
                std::max<std::int64_t>(std::max(context_.sizes().chunk_tokens, longest_),
                                       std::min<std::int64_t>(num_blocks + 1, kMostSequences)),
            .mode = AttentionMode::full,
            .num_threads = context_.options.num_threads,
            .first_index = 0};
  }

  std::int64_t mixed_length() {
    return std::uniform_int_distribution<std::int64_t>(1, longest_ - kDecodeSteps)(random_);
  }

  MaybeFailure run_batches() {
    const Result<std::int64_t> fitting = blocks_beside_weights();
    if (!fitting) return not_created(context_.options, fitting.status());
    // On average a sequence takes half of the longest: no more blocks than sequences can use.
    const std::int64_t block = context_.model().shape.block_size_tokens;
    const std::int64_t usable = kMostSequences * std::max<std::int64_t>(longest_ / block, 1) / 4;
    const std::int64_t num_blocks =
        std::min(*fitting, context_.on_gpu() ? usable : context_.sizes().batch_blocks);
    auto made =
        PressureEngine::create(context_.device(), context_.model(), options_for(num_blocks));
    if (!made) return not_created(context_.options, made.status());
    PressureEngine& engine = **made;
    report_.add("pool_blocks", num_blocks);
    report_.add("longest_sequence_tokens", longest_);
    FigureTable batches{{"sequences", "tokens", "blocks_in_use", "decode_steps"}, {}};
    for (const std::int64_t asked : {std::int64_t{1}, std::int64_t{4}, std::int64_t{64},
                                     std::numeric_limits<std::int64_t>::max()}) {
      if (auto failure = run_batch(engine, asked, batches)) return failure;
    }
    report_.add("batches", std::move(batches));
    expect_verified(report_, engine, engine.results_due());
    expect_idle(report_, engine);
    return std::nullopt;
  }

  // Each sequence is admitted with all blocks promised that it will need.
  Result<bool> admit(PressureEngine& engine, Status& refused) {
    const std::int64_t prompt = mixed_length();
    const Result<Job*> job = engine.add(prompt, kDecodeSteps);
    if (!job) return job.status();
    const Status promised =
        engine.cache().promise_capacity((*job)->sequence, prompt + kDecodeSteps);
    if (promised) return true;
    if (promised.code != StatusCode::exhausted) return promised;
    refused = promised;
    if (engine.remove(**job)) return promised;
    return false;
  }

  MaybeFailure run_batch(PressureEngine& engine, std::int64_t asked, FigureTable& batches) {
    Status refused;
    std::int64_t count = 0;
    while (count < asked) {
      const Result<bool> admitted = admit(engine, refused);
      if (!admitted) return unexpected("admission", admitted.status());
      if (!*admitted) break;
      ++count;
    }
    context_.progress(fmt::format("a batch of {}", count));
    const std::vector<Job*> jobs = engine.jobs();
    if (auto failure = prefill(engine, jobs)) return failure;
    if (auto failure = engine.decode(jobs, kDecodeSteps, StepWork::attend)) return failure;
    batches.rows.push_back({count, engine.cache().tables().stats().tokens,
                            engine.cache().manager().stats().referenced, kDecodeSteps});
    if (asked == std::numeric_limits<std::int64_t>::max()) {
      report_.expect("admission past the pool", "exhausted, required more than available",
                     fmt::format("{}, required {}, available {}", name_of(refused.code),
                                 refused.required, refused.available),
                     refused.code == StatusCode::exhausted && refused.required > refused.available);
      report_.expect_at_least("sequences at a time in the largest batch", 1, count);
    } else if (asked * engine.blocks_of(longest_) <= engine.cache().manager().num_blocks()) {
      report_.expect_equal(fmt::format("sequences in the batch of {}", asked), asked, count);
    } else {
      report_.add(fmt::format("batch_of_{}_in_a_pool_that_small", asked), count);
    }
    for (Job* job : jobs) {
      if (auto failure = engine.finish(*job)) return failure;
    }
    return std::nullopt;
  }

  // Whole prompts of different lengths share a step, as many as it takes.
  MaybeFailure prefill(PressureEngine& engine, const std::vector<Job*>& jobs) {
    std::vector<StepRow> rows;
    std::int64_t tokens = 0;
    for (Job* job : jobs) {
      if (tokens + job->prefill_length > engine.options().max_step_tokens) {
        if (auto failure = engine.grow(rows, StepWork::attend)) return failure;
        rows.clear();
        tokens = 0;
      }
      rows.push_back({job, static_cast<std::int32_t>(job->prefill_length)});
      tokens += job->prefill_length;
    }
    return engine.grow(rows, StepWork::attend);
  }

  MaybeFailure run_overload() {
    std::vector<OverloadRequest> requests;
    std::int64_t blocks = 0;
    std::int64_t tokens = 0;
    const std::int64_t block = context_.model().shape.block_size_tokens;
    for (std::int32_t i = 0; i < context_.sizes().overload_sequences; ++i) {
      const std::int64_t prompt = mixed_length();
      requests.push_back({prompt, longest_ - prompt});
      tokens += longest_;
      blocks += (longest_ + block - 1) / block;
    }
    const std::int64_t held = std::max(blocks / 3, (longest_ + block - 1) / block + 2);
    PressureEngineOptions options = options_for(held);
    options.watermark_blocks = 1;
    auto made = PressureEngine::create(context_.device(), context_.model(), options);
    if (!made) return not_created(context_.options, made.status());
    context_.progress(fmt::format("overload: {} sequences that need {} blocks, {} there",
                                  requests.size(), blocks, held));
    Overload overload(**made);
    if (auto failure = overload.run(requests)) return failure;
    judge_overload(**made, overload.figures(), std::ssize(requests), tokens);
    return std::nullopt;
  }

  void judge_overload(const PressureEngine& engine, const OverloadFigures& seen,
                      std::int64_t sequences, std::int64_t tokens) {
    const VerificationReport verified = engine.verification();
    report_.add("overload_pool_blocks", engine.cache().manager().num_blocks());
    report_.add("overload_steps", seen.steps);
    report_.add("overload_most_running", seen.most_running);
    report_.add("overload_admissions_refused", seen.admissions_refused);
    report_.add("overload_preemptions", seen.preemptions);
    report_.add("overload_recomputed_tokens", seen.recomputed_tokens);
    report_.expect_at_least("overload: admissions refused", 1, seen.admissions_refused);
    report_.expect("overload: the first refusal", "exhausted, required more than available",
                   fmt::format("{}, required {}, available {}", name_of(seen.first_refusal.code),
                               seen.first_refusal.required, seen.first_refusal.available),
                   seen.first_refusal.code == StatusCode::exhausted &&
                       seen.first_refusal.required > seen.first_refusal.available);
    report_.expect_at_least("overload: preemptions", 1, seen.preemptions);
    report_.expect_equal("overload: sequences that came to their end", sequences, seen.finished);
    report_.expect_equal("overload: tokens in them", tokens, seen.tokens_finished);
    report_.expect_equal("overload: sequences whose bytes were compared", sequences,
                         verified.sequences_compared);
    report_.expect_equal("overload: attention results compared", engine.results_due(),
                         verified.attention_rows);
    report_.expect_equal("overload: comparisons that failed", 0, verified.failures);
    expect_idle(report_, engine);
  }

  // The weights are there already.
  Result<std::int64_t> blocks_beside_weights() const {
    PressureOptions loaded = context_.options;
    loaded.model.weights_bytes = 0;
    return fitting_blocks(loaded, options_for(kMostSequences));
  }

  const PressureContext& context_;
  ScenarioReport& report_;
  std::mt19937_64 random_;
  std::int64_t longest_;
};

}  // namespace

MaybeFailure run_concurrency(const PressureContext& context, ScenarioReport& report) {
  return Concurrency(context, report).run();
}

}  // namespace kvarena::replay::pressure
