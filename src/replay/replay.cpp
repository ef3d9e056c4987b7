#include "replay/replay.hpp"

#include "replay/engines.hpp"
#include "replay/replay_options.hpp"
#include "verify/group_verifier.hpp"
#include "verify/verifier.hpp"

#include <fmt/format.h>

#include <optional>
#include <system_error>
#include <utility>

namespace kvarena::replay {
namespace {

MaybeFailure open_feed(const ReplayOptions& options, std::optional<ArrivalFeed>& feed) {
  Finding defect;
  auto reader = trace::TraceReader::open(options.trace, &defect);
  if (!reader) return ReplayFailure{ReplayEnd::bad_input, std::move(defect)};
  feed.emplace(std::move(*reader), options.limits.max_requests);
  return std::nullopt;
}

// Sizes of what the trace needs. A file is read a first time for them where the pool or the memory
// of steps is sized by the trace.
MaybeFailure size_up(const ReplayOptions& options, std::optional<ArrivalFeed>& feed,
                     TraceSurvey& survey) {
  const bool is_sized = options.pool.num_blocks || options.pool.pool_bytes;
  const bool rereadable = feed->is_rereadable();
  if (is_sized && (options.attention.mode == AttentionMode::off || !rereadable)) {
    survey = survey_without_reading(options);
    return std::nullopt;
  }
  if (!rereadable) {
    return contradiction(
        fmt::format("{} can be read only once, and the pool has no size", options.trace.path),
        "a size of the pool, or a file: a first reading finds the worst case",
        "give the pool a number of blocks or bytes, or save the trace to a file");
  }
  if (auto failure = survey_trace(*feed, options, survey)) return failure;
  if (options.trace.is_stopped()) return interrupted();
  return open_feed(options, feed);
}

// Checkpoints of states stay cached.
bool everything_free(EnginePool& pool) {
  const BlockStats stats = pool.manager().stats();
  const PageStats units = pool.unit_stats();
  const bool may_be_cached = pool.has_prefix_cache() || pool.units().has_groups();
  return stats.balanced() && units.balanced() && units.available() == units.num_pages &&
         (may_be_cached || stats.evictable == 0) && stats.references == 0 && stats.reserved == 0 &&
         stats.holders == 0 && pool.tables().stats().sequences == 0;
}

// One replay from the second pass on.
class Replay {
 public:
  Replay(const ReplayOptions& options, const TraceSurvey& survey, ProgressSink* sink,
         ReplayObserver* observer)
      : options_(options), survey_(survey), observer_(observer) {
    if (options.request_times != nullptr) instruments_.ledger.keep_times();
    instruments_.sink = sink;
    instruments_.observer = observer;
    instruments_.progress.requests_total = survey.requests;
    instruments_.progress.tokens_total = survey.tokens;
  }

  // The pool outlives what was built on it, wherever it goes.
  ~Replay() {
    verifier_.reset();
    if (observer_ != nullptr && pool_) observer_->on_end(std::move(pool_));
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  MaybeFailure run(ArrivalFeed& feed) {
    if (auto failure = EnginePool::create(options_, survey_, &pool_)) return failure;
    if (options_.timeline != nullptr) {
      instruments_.meter.write_timeline(*options_.timeline, options_.timeline_ns,
                                        pool_->block_size());
    }
    if (pool_->units().has_groups()) instruments_.groups.emplace(pool_->units());
    if (options_.attention.mode != AttentionMode::off) {
      if (auto failure = create_verifier()) return failure;
    }
    if (observer_ != nullptr) observer_->on_pool(pool_->publisher());
    if (options_.clock == ClockKind::linear) {
      return run_engine(LinearEngine(options_, feed, *pool_, instruments_));
    }
    return run_engine(StepEngine(options_, feed, *pool_, instruments_));
  }

  bool began() const noexcept { return pool_ != nullptr; }

  // The account at the end. `served`: the engine came to its end.
  MaybeFailure close(bool served) {
    if (verifier_ && (served || options_.trace.is_stopped())) {
      auto measured = verifier_->measure();
      if (!measured) return unexpected("measure", measured.status());
      measured_ = std::move(*measured);
    }
    const Status proof = pool_->check_invariants();
    balanced_ = proof.is_ok() && (!served || everything_free(*pool_));
    instruments_.meter.finish(end_ns_);
    if (options_.request_times != nullptr) instruments_.ledger.write_times(*options_.request_times);
    if (!served) return std::nullopt;
    if (balanced_) return check_served();
    const std::string account =
        proof ? pool_->explain(0, Urgency::growth) : "invariants: " + describe(proof);
    return ReplayFailure{
        ReplayEnd::check_failed,
        {.found = "the account does not balance after the last request\n" + account,
         .expected = "every block free, no sequence and no holder left",
         .advice = "a release was lost; this is a bug in kvarena, please report it"}};
  }

  void write_report(const ArrivalFeed& feed, ReplayReport& report) {
    const BlockStats stats = pool_->manager().stats();
    report.trace_format = name_of(feed.format());
    report.requests = feed.requests();
    report.input_tokens = feed.input_tokens();
    report.output_tokens = feed.output_tokens();
    report.block_size = pool_->block_size();
    report.num_blocks = pool_->unit_stats().num_pages;
    report.pool_bytes = pool_->cache() != nullptr ? pool_->cache()->arena().bytes() : 0;
    report.watermark_blocks = stats.watermark;
    // Cached blocks count as allocated, and as in use only while somebody holds them.
    report.peak_blocks = pool_->has_prefix_cache() || pool_->units().has_groups()
                             ? instruments_.meter.peak_blocks()
                             : stats.peak_allocated;
    report.has_prefix_cache = pool_->has_prefix_cache();
    report.prefix = pool_->tables().prefix_stats();
    report.salts = feed.num_salts();
    report.cached_tokens = instruments_.counters.cached_tokens;
    report.peak_requests = instruments_.meter.peak_running();
    report.time_mean_blocks = instruments_.meter.time_mean_blocks();
    instruments_.ledger.write_to(report);
    if (instruments_.groups) {
      instruments_.groups->write_to(pool_->manager(), report);
      report.waste = report.pages.waste;
    }
    report.virtual_us = instruments_.meter.elapsed_ns() / 1000;
    const EngineCounters& counters = instruments_.counters;
    report.steps = counters.steps;
    report.prefill_tokens = counters.prefill_tokens;
    report.decode_tokens = counters.decode_tokens;
    report.preemptions = counters.preemptions;
    report.recomputed_tokens = counters.recomputed_tokens;
    report.forks = counters.forks;
    report.copies_on_write = static_cast<std::int64_t>(pool_->tables().stats().copies_on_write);
    report.account = stats;
    report.balanced = balanced_;
    if (verifier_) report.verification = verifier_->report();
    report.measured = measured_;
    report.worst_case_blocks = pool_->worst_case_blocks();
  }

 private:
  MaybeFailure create_verifier() {
    const ReplayAttention& attention = options_.attention;
    const verify::VerifierOptions options{.mode = attention.mode,
                                          .shape = attention.shape,
                                          .num_q_heads = attention.num_q_heads,
                                          .sample_every = attention.sample_every,
                                          .max_step_tokens = options_.limits.max_batched_tokens,
                                          .layers = {}};
    if (pool_->units().has_groups()) {
      auto made = verify::GroupVerifier::create(options, options_.groups.list, *pool_->cache());
      if (!made) return unexpected("memory for steps", made.status());
      verifier_ = std::move(*made);
    } else {
      std::unique_ptr<verify::StepMemory> memory;
      if (auto failure = pool_->create_step_memory(&memory)) return failure;
      verifier_ = std::make_unique<verify::KvVerifier>(options, *pool_->cache(), std::move(memory));
    }
    instruments_.verifier = verifier_.get();
    return std::nullopt;
  }

  template <class Engine>
  MaybeFailure run_engine(Engine engine) {
    auto failure = engine.run();
    end_ns_ = engine.now_ns();
    return failure;
  }

  // A replay that served nobody shows nothing.
  MaybeFailure check_served() {
    if (instruments_.ledger.completed() > 0 || instruments_.ledger.rejected() == 0) return {};
    ReplayReport report;
    instruments_.ledger.write_to(report);
    return ReplayFailure{
        ReplayEnd::check_failed,
        {.found = fmt::format("all {} requests were rejected; the first, {}", report.rejected,
                              report.first_rejection),
         .expected = "a request that can be served",
         .advice = "give a larger pool or a longer context, or replay another trace"}};
  }

  const ReplayOptions& options_;
  const TraceSurvey& survey_;
  ReplayObserver* observer_;
  Instruments instruments_;
  std::unique_ptr<EnginePool> pool_;
  std::unique_ptr<verify::StepVerifier> verifier_;
  verify::MeasuredReport measured_;
  std::int64_t end_ns_ = 0;
  bool balanced_ = false;
};

void put(MaybeFailure failure, ReplayOutcome& outcome) {
  if (!failure || outcome.end != ReplayEnd::completed) return;
  outcome.end = failure->end;
  outcome.why = std::move(failure->why);
}

}  // namespace

std::string_view name_of(ClockKind clock) noexcept {
  switch (clock) {
    case ClockKind::step: return "step";
    case ClockKind::roofline: return "roofline";
    case ClockKind::linear: return "linear";
  }
  return "unknown";
}

std::string_view name_of(Reserve reserve) noexcept {
  switch (reserve) {
    case Reserve::full: return "full";
    case Reserve::prompt: return "prompt";
    case Reserve::none: return "none";
  }
  return "unknown";
}

ReplayOutcome run_replay(const ReplayOptions& options, ProgressSink* sink,
                         ReplayObserver* observer) {
  ReplayOutcome outcome;
  std::optional<ArrivalFeed> feed;
  TraceSurvey survey;
  auto failure = check_options(options);
  if (!failure) failure = open_feed(options, feed);
  if (!failure) failure = size_up(options, feed, survey);
  // A trace that is none is refused before the pool is made.
  if (!failure && feed->peek() == nullptr) failure = feed->failure();
  if (failure && options.trace.is_stopped()) {
    failure = ReplayFailure{ReplayEnd::interrupted,
                            {.found = "the replay was interrupted before it began"}};
  }
  if (failure) {
    put(std::move(failure), outcome);
    return outcome;
  }
  Replay replay(options, survey, sink, observer);
  failure = replay.run(*feed);
  const bool served = !failure;
  put(std::move(failure), outcome);
  if (!replay.began()) return outcome;
  put(replay.close(served), outcome);
  outcome.has_report = true;
  replay.write_report(*feed, outcome.report);
  return outcome;
}

}  // namespace kvarena::replay
