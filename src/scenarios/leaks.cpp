#include "scenarios/checks.hpp"
#include "scenarios/engine.hpp"
#include "scenarios/memory_reading.hpp"
#include "scenarios/suite.hpp"

#include "kvarena/device/residency.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::scenarios {
namespace {

constexpr std::int64_t kProgressEvery = 250;

/// Cycles of one kind: the first pays for what a process pays once, and each later one must leave
/// memory as the first did.
class CycleWatch {
 public:
  CycleWatch(const ScenarioContext& context, ScenarioReport& report, std::string kind)
      : context_(context),
        report_(report),
        kind_(std::move(kind)),
        table_({"first_cycle", "readings"}) {}

  /// Runs `cycle` so many times, then adds figures and checks, also when one fails. Those that
  /// compare with the first cycle need it done.
  MaybeFailure run(std::int64_t cycles, const std::function<MaybeFailure()>& cycle);

 private:
  MaybeFailure repeat(std::int64_t cycles, const std::function<MaybeFailure()>& cycle);
  MaybeFailure read(std::int64_t cycle);
  void conclude();

  const ScenarioContext& context_;
  ScenarioReport& report_;
  std::string kind_;  // as a prefix of figures
  MemoryTable table_;
  MemoryBalance before_, first_, last_;
  std::int64_t cycles_ = 0;       // done
  std::int64_t off_free_ = 0;     // cycles after which the driver's free bytes were others
  std::int64_t off_tracked_ = 0;  // or what the tracker has
  ProcessGrowth process_;
};

MaybeFailure CycleWatch::read(std::int64_t cycle) {
  const Result<MemoryBalance> balance = read_balance(context_.device());
  const Result<MemoryReading> reading = read_memory(context_.device());
  if (!balance) return unexpected("memory_info", balance.status());
  if (!reading) return unexpected("memory_info", reading.status());
  table_.fold(cycle, *reading);
  if (cycle == 0) before_ = *balance;
  if (cycle == 1) first_ = *balance;
  if (cycle > 1) {
    off_free_ += balance->driver_free == first_.driver_free ? 0 : 1;
    off_tracked_ += balance->tracked == first_.tracked && balance->staging == first_.staging &&
                            balance->allocations == first_.allocations
                        ? 0
                        : 1;
  }
  if (cycle > 0) process_.add(reading->process);
  last_ = *balance;
  return std::nullopt;
}

MaybeFailure CycleWatch::repeat(std::int64_t cycles, const std::function<MaybeFailure()>& cycle) {
  if (auto failure = read(0)) return failure;
  while (cycles_ < cycles) {
    if (is_stopped(context_.options.stop)) return interruption();
    if (auto failure = cycle()) return failure;
    if (auto failure = read(++cycles_)) return failure;
    if (cycles_ % kProgressEvery == 0) context_.progress(fmt::format("{}: {}", kind_, cycles_));
  }
  return std::nullopt;
}

MaybeFailure CycleWatch::run(std::int64_t cycles, const std::function<MaybeFailure()>& cycle) {
  auto failure = repeat(cycles, cycle);
  conclude();
  return failure;
}

void CycleWatch::conclude() {
  report_.add(kind_ + "_cycles", cycles_);
  report_.add(kind_ + "_memory", table_.table());
  if (cycles_ < 1) return;
  report_.add(kind_ + "_first_cycle_bytes", before_.driver_free - first_.driver_free);
  report_.add(kind_ + "_free_bytes_after_first", first_.driver_free);
  report_.add(kind_ + "_free_bytes_after_last", last_.driver_free);
  expect_same(report_, kind_ + ", last cycle against the first", first_, last_);
  report_.expect_equal(kind_ + ", tracked bytes since before the first", before_.tracked,
                       last_.tracked);
  report_.expect_equal(kind_ + ", cycles with other free bytes than after the first", 0, off_free_);
  report_.expect_equal(kind_ + ", cycles with other tracked memory", 0, off_tracked_);
  // On a GPU the driver's library keeps memory of its own in this process.
  process_.conclude(report_, kind_,
                    context_.on_gpu() ? std::nullopt : std::optional(context_.sizes().leak_bytes));
}

EngineOptions engine_of(const ScenarioContext& context) {
  const std::int64_t block = context.model().shape.block_size_tokens;
  const std::int64_t tokens = 2 * block + context.sizes().decode_steps;
  return {.pool = {.num_blocks = 2 * ((tokens + block - 1) / block)},
          .max_sequences = 2,
          .max_step_tokens = 4 * block,
          .touch_pool = true,
          .num_threads = context.options.num_threads,
          .stop = context.options.stop};
}

/// What no cycle may find.
struct Findings {
  std::int64_t wrong_bytes = 0;  // of weights
  std::int64_t violations = 0;   // of residency
};

/// Weights and a cache come, two sequences are prefilled, decoded and compared, all of it goes.
MaybeFailure load_run_unload(const ScenarioContext& context, Findings& findings) {
  auto instance = ServedInstance::create(context.options, engine_of(context));
  if (!instance) return not_created(context, instance.status());
  CheckedEngine& engine = instance->engine();
  const std::int64_t prompt = 2 * std::int64_t{context.model().shape.block_size_tokens};
  for (int i = 0; i < 2; ++i) {
    const Result<Job*> job = engine.add(prompt, context.sizes().decode_steps);
    if (!job) return unexpected("create_sequence", job.status());
    engine.verify_next();
    if (auto failure = engine.extend(**job, prompt, StepWork::attend)) return failure;
  }
  engine.verify_next();
  const std::vector<Job*> jobs = engine.jobs();
  if (auto failure = engine.decode(jobs, context.sizes().decode_steps, StepWork::attend)) {
    return failure;
  }
  for (Job* job : jobs) {
    if (auto failure = engine.finish(*job)) return failure;
  }
  const Result<std::int64_t> wrong = instance->weights().count_wrong_bytes();
  if (!wrong) return unexpected("copy", wrong.status());
  const ResidencyReport residency = verify_residency(context.device());
  if (!residency.status) return unexpected("place_of", residency.status);
  findings.wrong_bytes += *wrong;
  findings.violations += static_cast<std::int64_t>(residency.violations.size());
  return std::nullopt;
}

/// A cache comes, takes a sequence of one step, and goes with it.
MaybeFailure create_destroy(const ScenarioContext& context) {
  auto cache = KvCache::create(context.device(),
                               CheckedEngine::cache_options(context.model(), engine_of(context)));
  if (!cache) return not_created(context, cache.status());
  const Result<SequenceId> sequence = cache->create_sequence();
  if (!sequence) return unexpected("create_sequence", sequence.status());
  if (Status s = cache->begin_step(); !s) return unexpected("begin_step", s);
  const AppendDemand demand{*sequence, context.model().shape.block_size_tokens + 1};
  const Result<StepBatch> batch = cache->append({&demand, 1});
  if (!batch) return unexpected("append", batch.status());
  if (Status s = cache->end_step(); !s) return unexpected("end_step", s);
  return std::nullopt;
}

MaybeFailure run(const ScenarioContext& context, ScenarioReport& report) {
  Findings findings;
  CycleWatch loads(context, report, "load");
  if (auto failure = loads.run(context.sizes().load_cycles, [&context, &findings] {
        return load_run_unload(context, findings);
      })) {
    return failure;
  }
  report.expect_equal("wrong bytes in the weights, all cycles", 0, findings.wrong_bytes);
  report.expect_equal("residency violations, all cycles", 0, findings.violations);
  CycleWatch creations(context, report, "create");
  return creations.run(context.sizes().sequence_cycles,
                       [&context] { return create_destroy(context); });
}

}  // namespace

Scenario leaks() {
  return {"leaks", "Loading and unloading, creating and destroying", run,
          [](const ScenarioContext& context) {
            return instance_bytes(context.options, engine_of(context));
          }};
}

}  // namespace kvarena::scenarios
