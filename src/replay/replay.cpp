#include "replay/replay.hpp"

#include "replay/fault_planter.hpp"
#include "replay/linear_engine.hpp"
#include "replay/step_engine.hpp"
#include "verify/verifier.hpp"

#include <fmt/format.h>

#include <optional>
#include <system_error>
#include <utility>

namespace kvarena::replay {
namespace {

constexpr std::int64_t kMaxSamples = 256;

ReplayFailure contradiction(std::string happened, std::string expected, std::string advice) {
  return {ReplayEnd::bad_options, std::move(happened), std::move(expected), std::move(advice)};
}

MaybeFailure check_linear(const ReplayOptions& options) {
  if (options.clock != ClockKind::linear) return std::nullopt;
  if (options.reserve != Reserve::full) {
    return contradiction(
        "the linear clock with less than everything reserved",
        "--reserve full: on that clock a request holds its final length throughout",
        "use --reserve full, or --clock step");
  }
  if (options.samples != 1 || options.attention.mode != AttentionMode::off) {
    return contradiction("the linear clock with --samples or --attention",
                         "the step clock: only it computes tokens one after another",
                         "use --clock step");
  }
  return std::nullopt;
}

MaybeFailure check_roofline(const ReplayOptions& options) {
  if (options.roofline.has_value() == (options.clock == ClockKind::roofline)) return std::nullopt;
  return contradiction(fmt::format("the {} clock {} the numbers of a GPU", name_of(options.clock),
                                   options.roofline ? "with" : "without"),
                       "the roofline clock with them, any other without",
                       "use --clock roofline with --gpu, or --clock step without");
}

// A block that forks share does not become free when one of them gives it up.
MaybeFailure check_keeping(const ReplayOptions& options) {
  const bool preempts = options.clock != ClockKind::linear && options.samples == 1;
  if (!options.keep_preempted || preempts) return std::nullopt;
  return contradiction("--preempted keep with the linear clock or --samples",
                       "an engine that preempts, and one sequence a request",
                       "use --preempted drop");
}

MaybeFailure check_batch(const ReplayOptions& options) {
  if (options.clock == ClockKind::linear) return std::nullopt;
  const ReplayLimits& limits = options.limits;
  if (limits.max_running > 0 && options.samples > limits.max_running) {
    return contradiction(fmt::format("{} samples a request, {} running sequences", options.samples,
                                     limits.max_running),
                         "room for all samples of one request",
                         "raise --max-running or lower --samples");
  }
  if (limits.max_batched_tokens == 0) {
    if (options.attention.mode == AttentionMode::off) return std::nullopt;
    return contradiction("attention with an unlimited number of tokens in a step",
                         "a limit, from which its memory is sized",
                         "give --max-batched-tokens, for example 2048");
  }
  if (limits.max_running > 0 && limits.max_running <= limits.max_batched_tokens)
    return std::nullopt;
  return contradiction(
      limits.max_running == 0
          ? fmt::format("unlimited running sequences, {} tokens a step", limits.max_batched_tokens)
          : fmt::format("{} running sequences, {} tokens a step", limits.max_running,
                        limits.max_batched_tokens),
      "a token of each running sequence in every step",
      "raise --max-batched-tokens (0: unlimited) or lower --max-running");
}

MaybeFailure check_attention(const ReplayOptions& options) {
  if (options.attention.mode == AttentionMode::off) return std::nullopt;
  if (options.attention.device == nullptr) {
    return contradiction("attention without a device", "a device to compute it on",
                         "give ReplayAttention::device");
  }
  const DType dtype = options.attention.shape.dtype;
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) {
    return contradiction(fmt::format("attention over KV of type {}", name_of(dtype)),
                         "f32, f16 or bf16: what content is made in",
                         "give --dtype bf16, or --attention off");
  }
  auto layout = KvLayout::create(options.attention.shape);
  if (layout) return std::nullopt;
  return contradiction(fmt::format("the model shape: {}", describe(layout.status())), "",
                       "change --model or the shape's numbers");
}

MaybeFailure check_options(const ReplayOptions& options) {
  if (options.samples < 1 || options.samples > kMaxSamples) {
    return contradiction(fmt::format("{} samples", options.samples),
                         fmt::format("1 .. {}", kMaxSamples), "change --samples");
  }
  if (auto failure = check_linear(options)) return failure;
  if (auto failure = check_roofline(options)) return failure;
  if (auto failure = check_keeping(options)) return failure;
  if (auto failure = check_batch(options)) return failure;
  return check_attention(options);
}

MaybeFailure open_feed(const ReplayOptions& options, std::optional<ArrivalFeed>& feed) {
  trace::ParseFailure defect;
  auto reader = trace::TraceReader::open(options.trace, &defect);
  if (!reader) return bad_trace(defect);
  if (!reader->is_rereadable()) {
    return ReplayFailure{
        ReplayEnd::bad_input, fmt::format("{} cannot be read twice", options.trace.path),
        "a file: the first pass finds out the worst case", "save the stream to a file first"};
  }
  feed.emplace(std::move(*reader), options.limits.max_requests);
  return std::nullopt;
}

bool everything_free(EnginePool& pool) {
  const BlockStats stats = pool.manager().stats();
  return stats.balanced() && stats.free == stats.num_blocks && stats.references == 0 &&
         stats.reserved == 0 && stats.holders == 0 && pool.tables().stats().sequences == 0;
}

// One replay from the second pass on.
class Replay {
 public:
  Replay(const ReplayOptions& options, const TraceSurvey& survey, ProgressSink* sink,
         ReplayObserver* observer)
      : options_(options), survey_(survey), observer_(observer) {
    instruments_.sink = sink;
    instruments_.observer = observer;
    instruments_.progress.requests_total = survey.requests;
    instruments_.progress.tokens_total = survey.tokens;
  }

  // The pool outlives what was built on it, wherever it goes.
  ~Replay() {
    faults_.reset();
    verifier_.reset();
    if (observer_ != nullptr && pool_) observer_->on_end(std::move(pool_));
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  MaybeFailure run(ArrivalFeed& feed) {
    if (auto failure = EnginePool::create(options_, survey_, &pool_)) return failure;
    if (auto failure = open_files()) return failure;
    if (options_.attention.mode != AttentionMode::off) {
      std::unique_ptr<verify::StepMemory> memory;
      if (auto failure = pool_->create_step_memory(&memory)) return failure;
      const ReplayAttention& attention = options_.attention;
      verifier_.emplace(
          verify::VerifierOptions{.mode = attention.mode,
                                  .shape = attention.shape,
                                  .num_q_heads = attention.num_q_heads,
                                  .sample_every = attention.sample_every,
                                  .max_step_tokens = options_.limits.max_batched_tokens,
                                  .layers = {}},
          *pool_->cache(), std::move(memory));
      instruments_.verifier = &*verifier_;
    }
    if (observer_ != nullptr) observer_->on_pool(pool_->publisher());
    if (options_.attention.fault != Fault::none) {
      faults_.emplace(options_.attention, *pool_);
      instruments_.faults = &*faults_;
    }
    if (options_.clock == ClockKind::linear) {
      return run_engine(LinearEngine(options_, feed, *pool_, instruments_));
    }
    return run_engine(StepEngine(options_, feed, *pool_, instruments_));
  }

  bool began() const noexcept { return pool_ != nullptr; }

  // The account at the end. `served`: the engine came to its end.
  MaybeFailure close(bool served) {
    if (verifier_ && served) {
      auto measured = verifier_->measure();
      if (!measured) return unexpected("measure", measured.status());
      measured_ = std::move(*measured);
    }
    const Status proof = pool_->check_invariants();
    balanced_ = proof.is_ok() && (!served || everything_free(*pool_));
    if (Status status = instruments_.meter.finish(end_ns_); !status)
      return file_failure("--timeline", options_.timeline_path, status);
    if (Status status = instruments_.times.write(); !status)
      return file_failure("--request-times", options_.request_times_path, status);
    if (!served || balanced_) return std::nullopt;
    const std::string account =
        proof ? pool_->explain(0, Urgency::growth) : "invariants: " + describe(proof);
    return ReplayFailure{ReplayEnd::check_failed,
                         "the account does not balance after the last request\n" + account,
                         "every block free, no sequence and no holder left",
                         "a release was lost; this is a bug in kvarena, please report it"};
  }

  void write_report(const ArrivalFeed& feed, ReplayReport& report) {
    const BlockStats stats = pool_->manager().stats();
    report.trace_format = name_of(feed.format());
    report.requests = feed.requests();
    report.input_tokens = feed.input_tokens();
    report.output_tokens = feed.output_tokens();
    report.block_size = pool_->block_size();
    report.num_blocks = stats.num_blocks;
    report.pool_bytes = pool_->cache() != nullptr ? pool_->cache()->arena().bytes() : 0;
    report.watermark_blocks = stats.watermark;
    report.peak_blocks = stats.peak_allocated;
    report.peak_requests = instruments_.meter.peak_running();
    report.time_mean_blocks = instruments_.meter.time_mean_blocks();
    instruments_.ledger.write_to(report);
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
  template <class Engine>
  MaybeFailure run_engine(Engine engine) {
    auto failure = engine.run();
    end_ns_ = engine.now_ns();
    return failure;
  }

  MaybeFailure open_files() {
    if (!options_.timeline_path.empty()) {
      const Status status = instruments_.meter.open_timeline(
          options_.timeline_path, options_.timeline_ns, pool_->block_size());
      if (!status) return file_failure("--timeline", options_.timeline_path, status);
    }
    if (options_.request_times_path.empty()) return std::nullopt;
    const Status status = instruments_.times.open(options_.request_times_path);
    if (status) return std::nullopt;
    return file_failure("--request-times", options_.request_times_path, status);
  }
  static ReplayFailure file_failure(const char* option, const std::string& path,
                                    const Status& status) {
    return {ReplayEnd::environment,
            fmt::format("{} {}: {}", option, path, std::generic_category().message(status.native)),
            "a writable file", "check the folder, its permissions and the disk"};
  }

  const ReplayOptions& options_;
  const TraceSurvey& survey_;
  ReplayObserver* observer_;
  Instruments instruments_;
  std::unique_ptr<EnginePool> pool_;
  std::optional<verify::KvVerifier> verifier_;
  std::optional<FaultPlanter> faults_;
  verify::MeasuredReport measured_;
  std::int64_t end_ns_ = 0;
  bool balanced_ = false;
};

void put(MaybeFailure failure, ReplayOutcome& outcome) {
  if (!failure || outcome.end != ReplayEnd::completed) return;
  outcome.end = failure->end;
  outcome.happened = std::move(failure->happened);
  outcome.expected = std::move(failure->expected);
  outcome.advice = std::move(failure->advice);
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
  if (!failure) failure = survey_trace(*feed, options, survey);
  if (!failure) failure = open_feed(options, feed);
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
