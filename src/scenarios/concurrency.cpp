// Scenario 6: batches of 1, 4, 64 and as many as fit, of mixed lengths; then three times more work
// than fits. Every result is compared.

#include "scenarios/checks.hpp"
#include "scenarios/engine.hpp"
#include "scenarios/memory_reading.hpp"
#include "scenarios/overload.hpp"
#include "scenarios/suite.hpp"

#include "verify/device_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace kvarena::scenarios {
namespace {

constexpr std::int32_t kMostSequences = 4096;
// Lengths are mixed, on average half the longest: about so many sequences fill the pool, and
// memory is what runs out.
constexpr std::int64_t kFillingSequences = kMostSequences / 4 * 3;
constexpr std::int64_t kSparePart = 64;  // of the free memory: what a GPU's driver may yet need
constexpr std::int64_t kDecodeSteps = 3;

/// A pool for a batch of as many as fit.
struct BatchPool {
  std::int64_t num_blocks = 0;
  std::string_view limited_by;
};

class Concurrency {
 public:
  Concurrency(const ScenarioContext& context, ScenarioReport& report)
      : context_(context),
        report_(report),
        random_(static_cast<std::uint64_t>(context.options.seed)),
        attended_(std::min(
            context.on_gpu() ? context.sizes().gpu_batch_tokens : context.sizes().batch_tokens,
            context.model().max_context_tokens)),
        longest_(attended_),
        memory_({"sequences", "tokens"}) {}

  MaybeFailure run() {
    const Result<ModelWeights> weights = load_weights(context_.options);
    if (!weights) return not_created(context_, weights.status());
    if (auto failure = run_batches()) return failure;
    longest_ = attended_;
    if (auto failure = run_overload()) return failure;
    return expect_weights_intact(report_, *weights);
  }

  /// Of the largest of its engines beside the weights and what is left free.
  Result<std::int64_t> required_bytes() const {
    std::int64_t most = 0;
    for (const EngineOptions& options : {least_engine(), overload_engine()}) {
      const Result<std::int64_t> bytes =
          CheckedEngine::device_bytes(context_.device(), context_.model(), options);
      if (!bytes) return bytes.status();
      most = std::max(most, *bytes);
    }
    return context_.model().weights_bytes + most + most / (kSparePart - 1) + 1;
  }

 private:
  EngineOptions options_for(std::int64_t num_blocks) const {
    return {.pool = {.num_blocks = num_blocks},
            .max_sequences =
                static_cast<std::int32_t>(std::min<std::int64_t>(num_blocks + 1, kMostSequences)),
            .max_step_tokens =
                std::max<std::int64_t>(std::max(context_.sizes().chunk_tokens, longest_),
                                       std::min<std::int64_t>(num_blocks + 1, kMostSequences)),
            .mode = AttentionMode::full,
            .num_threads = context_.options.num_threads,
            .stop = context_.options.stop};
  }

  /// The smallest in which the largest batch runs: of one sequence, on a GPU of one context.
  EngineOptions least_engine() const {
    EngineOptions options = options_for(kMostSequences);
    options.pool = {.num_blocks = blocks_of(longest_)};
    if (context_.on_gpu()) options.pool = {.num_blocks = context_blocks(context_.model())};
    return options;
  }

  /// A third of what the overload needs.
  EngineOptions overload_engine() const {
    const std::int64_t blocks = context_.sizes().overload_sequences * blocks_of(longest_);
    EngineOptions options = options_for(std::max(blocks / 3, blocks_of(longest_) + 2));
    options.watermark_blocks = 1;
    return options;
  }

  std::int64_t blocks_of(std::int64_t tokens) const noexcept {
    const std::int64_t block = context_.model().shape.block_size_tokens;
    return (tokens + block - 1) / block;
  }

  std::int64_t mixed_length() {
    return std::uniform_int_distribution<std::int64_t>(1, longest_ - kDecodeSteps)(random_);
  }

  MaybeFailure run_batches() {
    if (context_.on_gpu()) {
      if (auto failure = choose_longest()) return failure;
      if (auto failure = warm_up(context_, options_for(kMostSequences))) return failure;
    }
    const Result<BatchPool> pool = size_pool();
    if (!pool) return not_created(context_, pool.status());
    auto made =
        CheckedEngine::create(context_.device(), context_.model(), options_for(pool->num_blocks));
    if (!made) return not_created(context_, made.status());
    CheckedEngine& engine = **made;
    report_.add("pool_blocks", pool->num_blocks);
    report_.add("pool_limited_by", std::string(pool->limited_by));
    report_.add("longest_sequence_tokens", longest_);
    if (auto failure = memory_.read({0, 0}, context_.device())) return failure;
    FigureTable batches{{"sequences", "tokens", "blocks_in_use", "decode_steps"}, {}};
    for (const std::int64_t asked : {std::int64_t{1}, std::int64_t{4}, std::int64_t{64},
                                     std::numeric_limits<std::int64_t>::max()}) {
      if (auto failure = run_batch(engine, asked, batches)) return failure;
    }
    if (auto failure = memory_.read({0, 0}, context_.device())) return failure;
    report_.add("batches", std::move(batches));
    report_.add("memory", memory_.table());
    expect_verified(report_, engine, engine.results_due());
    expect_idle(report_, engine);
    return std::nullopt;
  }

  // Each sequence is admitted with all blocks promised that it will need.
  Result<bool> admit(CheckedEngine& engine, Status& refused) {
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

  MaybeFailure run_batch(CheckedEngine& engine, std::int64_t asked, FigureTable& batches) {
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
    const std::int64_t tokens = engine.cache().tables().stats().tokens;
    batches.rows.push_back(
        {count, tokens, engine.cache().manager().stats().referenced, kDecodeSteps});
    if (auto failure = memory_.read({count, tokens}, context_.device())) return failure;
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

  // Of a prompt longer than `attended_` only the attention that is compared is computed.
  MaybeFailure prefill(CheckedEngine& engine, const std::vector<Job*>& jobs) {
    std::vector<StepRow> heads;
    std::vector<StepRow> rest;
    for (Job* job : jobs) {
      const std::int32_t compared = KvVerifier::kComparedQueries;
      const auto prompt = static_cast<std::int32_t>(job->prefill_length);
      const std::int32_t head = prompt > attended_ ? prompt - compared : 0;
      if (head > 0) heads.push_back({job, head});
      rest.push_back({job, prompt - head});
    }
    if (auto failure = grow_together(engine, heads, StepWork::write)) return failure;
    return grow_together(engine, rest, StepWork::attend);
  }

  // Rows of different lengths share a step, as many as it takes.
  static MaybeFailure grow_together(CheckedEngine& engine, std::span<const StepRow> rows,
                                    StepWork work) {
    while (!rows.empty()) {
      std::size_t count = 0;
      for (std::int64_t tokens = 0; count < rows.size(); ++count) {
        tokens += rows[count].tokens;
        if (tokens > engine.options().max_step_tokens) break;
      }
      if (auto failure = engine.grow(rows.first(count), work)) return failure;
      rows = rows.subspan(count);
    }
    return std::nullopt;
  }

  MaybeFailure run_overload() {
    std::vector<OverloadRequest> requests;
    for (std::int32_t i = 0; i < context_.sizes().overload_sequences; ++i) {
      const std::int64_t prompt = mixed_length();
      requests.push_back({prompt, longest_ - prompt});
    }
    const EngineOptions options = overload_engine();
    auto made = CheckedEngine::create(context_.device(), context_.model(), options);
    if (!made) return not_created(context_, made.status());
    context_.progress(fmt::format("overload: {} sequences that need {} blocks, {} there",
                                  requests.size(), std::ssize(requests) * blocks_of(longest_),
                                  options.pool.num_blocks));
    Overload overload(**made);
    if (auto failure = overload.run(requests)) return failure;
    judge_overload(**made, overload.figures(), std::ssize(requests),
                   std::ssize(requests) * longest_);
    return std::nullopt;
  }

  void judge_overload(const CheckedEngine& engine, const OverloadFigures& seen,
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

  // ---- as many as fit --------------------------------------------------------------------------

  // Sequences so long that kFillingSequences of them need all free memory.
  MaybeFailure choose_longest() {
    const Result<MemoryInfo> memory = context_.device().memory_info();
    if (!memory) return unexpected("memory_info", memory.status());
    const std::int64_t tokens =
        static_cast<std::int64_t>(memory->free_bytes) / model_bytes_per_token(context_.model());
    const std::int64_t block = context_.model().shape.block_size_tokens;
    const std::int64_t filling = (2 * tokens / kFillingSequences / block + 1) * block;
    longest_ = std::clamp(filling, attended_, context_.model().max_context_tokens);
    return std::nullopt;
  }

  Result<BatchPool> size_pool() const {
    const Result<std::int64_t> fitting = blocks_beside_weights();
    if (!fitting) return fitting.status();
    const std::int64_t block = context_.model().shape.block_size_tokens;
    BatchPool pool{*fitting, "memory"};
    const auto limit = [&pool](std::int64_t num_blocks, std::string_view by) {
      if (num_blocks < pool.num_blocks) pool = {num_blocks, by};
    };
    limit(kFillingSequences * std::max<std::int64_t>(longest_ / block, 1) / 2, "max_sequences");
    if (!context_.on_gpu()) limit(context_.sizes().batch_blocks, "run_time");
    return pool;
  }

  // The weights are there already.
  Result<std::int64_t> blocks_beside_weights() const {
    EngineOptions options = options_for(kMostSequences);
    options.pool = {.num_blocks = blocks_of(longest_)};
    const Result<MemoryInfo> memory = context_.device().memory_info();
    if (!memory) return memory.status();
    const auto spare = verify::DeviceMemory::create(
        context_.device(), static_cast<std::int64_t>(memory->free_bytes) / kSparePart,
        "scenario: left free");
    if (!spare) return spare.status();
    const auto found = find_largest_pool(context_.device(), context_.model(), options);
    if (!found) return found.status();
    return found->num_blocks;
  }

  const ScenarioContext& context_;
  ScenarioReport& report_;
  std::mt19937_64 random_;
  std::int64_t attended_;  // tokens of the longest prompt whose attention is all computed
  std::int64_t longest_;   // tokens of the longest sequence
  MemoryTable memory_;
};

MaybeFailure run(const ScenarioContext& context, ScenarioReport& report) {
  return Concurrency(context, report).run();
}

Result<std::int64_t> required_bytes(const ScenarioContext& context) {
  ScenarioReport none;
  return Concurrency(context, none).required_bytes();
}

}  // namespace

Scenario concurrency() {
  return {"concurrency", "Batches, as many as fit, and overload", run, required_bytes};
}

}  // namespace kvarena::scenarios
