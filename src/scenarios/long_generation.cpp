// Scenario 7: a long generation. Sequences of mixed lengths come and go until so many tokens were
// decoded. The host writes and compares one layer, which is what it can do in minutes; a GPU all.

#include "scenarios/checks.hpp"
#include "scenarios/memory_reading.hpp"
#include "scenarios/step_times.hpp"
#include "scenarios/suite.hpp"

#include "kvarena/device/residency.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvarena::scenarios {
namespace {

constexpr std::int64_t kLongestPrompt = 16;
constexpr std::int64_t kSampleEvery = 64;   // steps from one compared one to the next
constexpr std::int64_t kCompareEvery = 16;  // sequences, of which one's bytes are compared
constexpr std::int64_t kReadings = 100;     // of accounts and residency, over the run

class LongGeneration {
 public:
  LongGeneration(const ScenarioContext& context, ScenarioReport& report, CheckedEngine& engine,
                 std::int64_t batch, std::int64_t longest)
      : context_(context),
        report_(report),
        engine_(engine),
        batch_(batch),
        longest_(longest),
        appends_(context.sizes().appends),
        random_(static_cast<std::uint64_t>(context.options.seed)),
        times_(appends_),
        memory_({"appends"}) {}

  MaybeFailure run() {
    if (auto failure = warm_up()) return failure;
    while (done_ < appends_) {
      if (auto failure = step()) return failure;
      while (done_ >= appends_ * (readings_ + 1) / kReadings) {
        if (auto failure = read()) return failure;
      }
    }
    if (auto failure = expect_resident(report_, "with the pool in use", context_.device(),
                                       engine_.cache().arena())) {
      return failure;
    }
    for (Job* job : running_) {
      if (auto failure = engine_.finish(*job)) return failure;
    }
    judge();
    return std::nullopt;
  }

 private:
  // Whatever compares at this size has its memory from now on.
  MaybeFailure warm_up() {
    const Result<Job*> job = engine_.add(longest_ - 1, 1);
    if (!job) return unexpected("create_sequence", job.status());
    if (auto failure = engine_.extend(**job, longest_ - 1, StepWork::attend)) return failure;
    engine_.verify_next();
    if (auto failure = engine_.extend(**job, longest_, StepWork::attend)) return failure;
    return engine_.finish(**job);
  }

  MaybeFailure admit() {
    while (std::ssize(running_) < batch_) {
      const std::int64_t prompt = std::uniform_int_distribution<std::int64_t>(
          1, std::min(kLongestPrompt, longest_ - 1))(random_);
      const std::int64_t output =
          std::uniform_int_distribution<std::int64_t>(1, longest_ - prompt)(random_);
      const Result<Job*> job = engine_.add(prompt, output);
      if (!job) return unexpected("create_sequence", job.status());
      running_.push_back(*job);
    }
    return std::nullopt;
  }

  // Rows that decode come first; new sequences are behind the others.
  MaybeFailure step() {
    if (auto failure = admit()) return failure;
    rows_.clear();
    std::int64_t decoded = 0;
    for (Job* job : running_) {
      const bool decodes = job->decodes();
      decoded += decodes ? 1 : 0;
      rows_.push_back({job, decodes ? 1 : static_cast<std::int32_t>(job->prefill_length)});
    }
    const std::int64_t start_ns = context_.now_ns();
    if (auto failure = engine_.grow(rows_, StepWork::attend)) return failure;
    times_.add(done_ + decoded, context_.now_ns() - start_ns);
    done_ += decoded;
    ++steps_;
    return finish();
  }

  MaybeFailure finish() {
    for (Job*& job : running_) {
      if (!job->is_finished()) continue;
      if (finished_++ % kCompareEvery == 0) {
        if (auto failure = engine_.check(*job)) return failure;
      }
      if (auto failure = engine_.remove(*job)) return failure;
      job = nullptr;
    }
    std::erase(running_, nullptr);
    return std::nullopt;
  }

  MaybeFailure read() {
    ++readings_;
    const BlockStats stats = engine_.cache().manager().stats();
    unbalanced_ += stats.balanced() && engine_.cache().check_invariants() ? 0 : 1;
    const ResidencyReport residency = verify_residency(context_.device());
    if (!residency.status) return unexpected("verify_residency", residency.status);
    violations_ += std::ssize(residency.violations);
    const Result<MemoryReading> reading = read_memory(context_.device());
    if (!reading) return unexpected("memory_info", reading.status());
    if (readings_ == kReadings / 10) settled_ = *reading;
    if (readings_ >= kReadings / 10) compare(*reading);
    if (readings_ % (kReadings / 10) == 0) {
      memory_.add({done_}, *reading);
      context_.progress(fmt::format("{} of {} appends", done_, appends_));
    }
    return std::nullopt;
  }

  void compare(const MemoryReading& reading) {
    tracked_growth_ = std::max(tracked_growth_, std::abs(reading.tracked - settled_.tracked));
    device_growth_ = std::max(device_growth_, std::abs(reading.driver_used - settled_.driver_used));
    process_.add(reading.process);
  }

  void judge() {
    report_.add("appends", done_);
    report_.add("steps", steps_);
    report_.add("batch", batch_);
    report_.add("longest_sequence_tokens", longest_);
    report_.add("sequences_finished", finished_);
    report_.add("median_step_us_first_tenth", static_cast<double>(times_.first_median_ns()) / 1e3);
    report_.add("median_step_us_last_tenth", static_cast<double>(times_.last_median_ns()) / 1e3);
    report_.add("memory", memory_.table());
    report_.expect_at_least("decode appends", appends_, done_);
    report_.expect_at_least("readings of accounts, residency and memory", kReadings, readings_);
    report_.expect_equal("readings with accounts that did not prove", 0, unbalanced_);
    report_.expect_equal("residency violations in all readings", 0, violations_);
    report_.expect_equal("tracked device bytes, largest change from 10 % to the end", 0,
                         tracked_growth_);
    report_.expect_equal("device bytes the driver calls used, largest change from 10 % to the end",
                         0, device_growth_);
    process_.conclude(report_, "generation", context_.sizes().leak_bytes);
    expect_verified(report_, engine_);
    expect_idle(report_, engine_);
  }

  const ScenarioContext& context_;
  ScenarioReport& report_;
  CheckedEngine& engine_;
  std::int64_t batch_;
  std::int64_t longest_;
  std::int64_t appends_;
  std::mt19937_64 random_;
  std::vector<Job*> running_;
  std::vector<StepRow> rows_;
  std::int64_t done_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t finished_ = 0;
  std::int64_t readings_ = 0;
  std::int64_t unbalanced_ = 0;
  std::int64_t violations_ = 0;
  StepTimes times_;
  MemoryTable memory_;
  MemoryReading settled_;  // at 10 % of the run
  std::int64_t tracked_growth_ = 0;
  std::int64_t device_growth_ = 0;
  ProcessGrowth process_;
};

// ---- sizes -------------------------------------------------------------------------------------

std::int64_t longest_of(const ScenarioContext& context) {
  return std::min(context.sizes().generation_tokens, context.model().max_context_tokens);
}

std::int64_t sequence_blocks(const ScenarioContext& context) {
  const std::int64_t block = context.model().shape.block_size_tokens;
  return (longest_of(context) + block - 1) / block;
}

/// A pool in which `batch` sequences never run out of blocks, whatever their lengths.
EngineOptions engine_of(const ScenarioContext& context, std::int64_t batch) {
  EngineOptions options{
      .pool = {.num_blocks = batch * sequence_blocks(context)},
      .max_sequences = static_cast<std::int32_t>(batch) + 1,
      .max_step_tokens = std::max(context.sizes().chunk_tokens, batch * kLongestPrompt),
      .sample_every = kSampleEvery,
      .touch_pool = true,
      .num_threads = context.options.num_threads,
      .stop = context.options.stop};
  if (!context.on_gpu()) {
    options.layers = {context.model().shape.num_layers / 2, 1};
    options.num_threads = 1;  // a step writes a few hundred KB: another worker would only wait
  }
  return options;
}

/// The most sequences, up to the batch of the options, whose instance leaves a sixteenth of what is
/// free now; at least one.
Result<std::int64_t> fitting_batch(const ScenarioContext& context) {
  constexpr std::int64_t kSparePart = 16;
  const Result<MemoryInfo> memory = context.device().memory_info();
  if (!memory) return memory.status();
  const auto free_bytes = static_cast<std::int64_t>(memory->free_bytes);
  std::int64_t batch = context.sizes().generation_batch;
  for (; batch > 1; --batch) {
    const auto bytes = instance_bytes(context.options, engine_of(context, batch));
    if (!bytes) return bytes.status();
    if (*bytes <= free_bytes - free_bytes / kSparePart) break;
  }
  return batch;
}

MaybeFailure run(const ScenarioContext& context, ScenarioReport& report) {
  const Result<std::int64_t> batch = fitting_batch(context);
  if (!batch) return not_created(context, batch.status());
  auto instance = ServedInstance::create(context.options, engine_of(context, *batch));
  if (!instance) return not_created(context, instance.status());
  LongGeneration generation(context, report, instance->engine(), *batch, longest_of(context));
  if (auto failure = generation.run()) return failure;
  return expect_weights_intact(report, instance->weights());
}

}  // namespace

Scenario long_generation() {
  return {"long-generation", "A long generation with turnover", run,
          [](const ScenarioContext& context) {
            return instance_bytes(context.options, engine_of(context, 1));
          }};
}

}  // namespace kvarena::scenarios
