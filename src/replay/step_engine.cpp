#include "replay/engines.hpp"

#include "verify/step_verifier.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace kvarena::replay {
StepEngine::StepEngine(const ReplayOptions& options, ArrivalFeed& feed, EnginePool& pool,
                       Instruments& instruments)
    : options_(options),
      feed_(feed),
      pool_(pool),
      instruments_(instruments),
      kept_(pool),
      admission_(options, pool, kept_),
      clock_(make_step_clock(options)) {}

void StepEngine::record() {
  instruments_.meter.record(now_ns_, {.blocks = pool_.held_blocks() - kept_.blocks(),
                                      .running = static_cast<std::int64_t>(running_.size()),
                                      .waiting = static_cast<std::int64_t>(waiting_.size()),
                                      .tokens = pool_.tables().stats().tokens - kept_.tokens(),
                                      .preemptions = instruments_.counters.preemptions,
                                      .completed = instruments_.ledger.completed(),
                                      .pages = instruments_.page_use(now_ns_, pool_.manager())});
}

void StepEngine::take_arrivals() {
  const TraceRequest* next = nullptr;
  while ((next = feed_.peek()) != nullptr && next->arrival_us * 1000 <= now_ns_) {
    auto request = feed_.take();
    instruments_.ledger.arrive(*request);
    if (const std::string why = admission_.reason_never(*request); !why.empty()) {
      instruments_.ledger.reject(*request, why);
      continue;
    }
    auto job = std::make_unique<Job>();
    job->request = std::make_shared<ActiveRequest>();
    job->prefill_length = request->input_tokens;
    job->to_fork = request->output_tokens > 0 ? options_.samples - 1 : 0;
    job->request->unfinished = 1 + job->to_fork;
    job->request->trace = std::move(request);
    if (instruments_.verifier != nullptr || pool_.has_prefix_cache()) {
      job->request->content = content_of(*job->request->trace);
      job->stream = {job->request->content, 0};
    }
    waiting_.push_back(std::move(job));
  }
}

std::int64_t StepEngine::seats_taken() const noexcept {
  return static_cast<std::int64_t>(running_.size()) + promised_forks_;
}

void StepEngine::add_row(Job& job, std::int64_t tokens) {
  rows_.push_back({&job, static_cast<std::int32_t>(tokens)});
  demands_.push_back({job.sequence, static_cast<std::int32_t>(tokens)});
  budget_ -= tokens;
}

// Decodes come first in the budget, which holds at least one token for every running sequence. They
// also come first in the step, as decode attention on a GPU wants them: a prompt under way takes
// all that is left, so that nobody admitted after it decodes before it does.
void StepEngine::plan_running() {
  rows_.clear();
  demands_.clear();
  const std::int64_t limit = options_.limits.max_batched_tokens;
  budget_ = limit > 0 ? limit : std::numeric_limits<std::int32_t>::max();
  std::int64_t decoding = 0;
  for (const JobPtr& job : running_) decoding += job->decodes() ? 1 : 0;
  std::int64_t for_prompts = budget_ - decoding;
  for (const JobPtr& job : running_) {
    if (job->decodes()) {
      add_row(*job, 1);
      continue;
    }
    const std::int64_t chunk = std::min(job->prefill_length - job->length, for_prompts);
    if (chunk == 0) continue;
    for_prompts -= chunk;
    add_row(*job, chunk);
  }
}

MaybeFailure StepEngine::admit() {
  if (waiting_.empty() || budget_ == 0) return std::nullopt;
  const std::int64_t max_running = options_.limits.max_running;
  std::int64_t pending = 0;
  for (const JobRow& row : rows_) pending += admission_.growth_blocks(*row.job, row.tokens);
  while (!waiting_.empty() && budget_ > 0) {
    Job& job = *waiting_.front();
    if (max_running > 0 && seats_taken() + 1 + job.to_fork > max_running) break;
    const std::int64_t chunk = std::min(job.prefill_length - job.length, budget_);
    const Admitted answer = admission_.offer(job, chunk, pending);
    if (answer == Admitted::failed) return unexpected("admission", admission_.failure());
    if (answer == Admitted::later) break;
    const std::int64_t left = std::min(job.prefill_length - job.length, budget_);
    pending += admission_.growth_blocks(job, left);
    if (instruments_.verifier != nullptr) job.rewind_stream();
    instruments_.counters.cached_tokens += std::exchange(job.cached, 0);
    promised_forks_ += job.to_fork;
    add_row(job, left);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return std::nullopt;
}

// A request that fits an empty pool does not fit although nothing else runs.
MaybeFailure StepEngine::blocks_lost(const Job& job) const {
  return lost_blocks(
      *job.request->trace,
      pool_.explain(pool_.units().of_length(job.request->final_length()), Urgency::admission));
}

MaybeFailure StepEngine::preempt_newest(const Status& cause) {
  if (cause.code != StatusCode::exhausted) return unexpected("append", cause);
  if (running_.size() == 1) return blocks_lost(*running_.front());
  JobPtr victim = std::move(running_.back());
  running_.pop_back();
  if (!rows_.empty() && rows_.back().job == victim.get()) {
    rows_.pop_back();
    demands_.pop_back();
  }
  promised_forks_ -= victim->to_fork;
  if (victim->length > 0) {  // one that was admitted in this very step has nothing to lose
    victim->preempted = true;
    ++instruments_.counters.preemptions;
  }
  victim->prefill_length = std::max(victim->prefill_length, victim->length);
  lost_tokens_ += victim->length;
  const Status status =
      options_.keep_preempted ? kept_.keep(*victim) : admission_.withdraw(*victim);
  if (!status) return unexpected("preemption", status);
  lost_tokens_ -= victim->length;
  waiting_.push_front(std::move(victim));
  return std::nullopt;
}

/// Cuts the newest chunk of a prompt in half. A step's own tokens need blocks that a window or a
/// chunk gives back at its end, so that a smaller step may fit. Returns false when none is left.
bool StepEngine::shorten_newest() {
  if (!pool_.units().has_groups() || rows_.empty()) return false;
  JobRow& newest = rows_.back();
  if (newest.tokens <= pool_.block_size()) return false;
  newest.tokens = (newest.tokens + 1) / 2;
  demands_.back().num_tokens = newest.tokens;
  return true;
}

// What preempted sequences only keep goes before anything that runs does.
MaybeFailure StepEngine::make_room(const Status& cause) {
  if (cause.code == StatusCode::exhausted && shorten_newest()) return std::nullopt;
  if (cause.code != StatusCode::exhausted || kept_.blocks() == 0) return preempt_newest(cause);
  const auto missing = static_cast<std::int64_t>(cause.required - cause.available);
  const auto freed = kept_.reclaim(std::max<std::int64_t>(missing, 1), nullptr, &lost_tokens_);
  return freed ? std::nullopt : MaybeFailure(unexpected("reclaim", freed.status()));
}

// The ids of the step's tokens, for a prefix cache.
void StepEngine::tell_tokens() {
  if (!pool_.has_prefix_cache()) return;
  tokens_.clear();
  for (const JobRow& row : rows_) row.job->append_tokens(row.job->length, row.tokens, tokens_);
  std::span<const std::int32_t> rest = tokens_;
  for (AppendDemand& demand : demands_) {
    const auto count = static_cast<std::size_t>(demand.num_tokens);
    demand.tokens = rest.first(count);
    rest = rest.subspan(count);
  }
}

MaybeFailure StepEngine::grow() {
  ReplayObserver* const observer = instruments_.observer;
  while (true) {
    tell_tokens();
    if (observer != nullptr) observer->before_append(pool_, demands_);
    const Status status = pool_.append(demands_);
    if (status) break;
    if (auto failure = make_room(status)) return failure;
  }
  if (observer != nullptr) observer->after_append(pool_);
  for (const JobRow& row : rows_) {
    Job& job = *row.job;
    if (!job.request->started) {
      job.request->started = true;
      instruments_.ledger.start(*job.request->trace, now_ns_);
    }
    job.length += row.tokens;
  }
  return std::nullopt;
}

void StepEngine::pass_time() {
  StepLoad load;
  clock_rows_.clear();
  for (const JobRow& row : rows_) {
    const bool decode = row.job->length > row.job->prefill_length;
    (decode ? load.decode_tokens : load.prompt_tokens) += row.tokens;
    clock_rows_.push_back({row.job->length - row.tokens, row.tokens});
  }
  load.rows = clock_rows_;
  const auto taken = clock_->step_ns(load);
  time_overflow_ |= !taken || __builtin_add_overflow(now_ns_, *taken, &now_ns_);
  instruments_.counters.prefill_tokens += load.prompt_tokens;
  instruments_.counters.decode_tokens += load.decode_tokens;
  instruments_.counters.recomputed_tokens = lost_tokens_ + admission_.lost_tokens();
  ++instruments_.counters.steps;
  for (const JobRow& row : rows_) {
    const Job& job = *row.job;
    if (!job.decodes() || job.length > job.prefill_length) continue;
    instruments_.ledger.compute_prompt(*job.request->trace, now_ns_);
  }
}

// The prompt is computed: the other samples of the request begin as forks of it.
MaybeFailure StepEngine::fork_samples(std::size_t root) {
  std::vector<JobPtr> children;
  Job& parent = *running_[root];
  while (parent.to_fork > 0) {
    auto sequence = pool_.fork(parent.sequence, parent.length);
    if (!sequence) return unexpected("fork", sequence.status());
    auto child = std::make_unique<Job>(parent);
    child->to_fork = 0;
    child->sequence = *sequence;
    child->stream = parent.stream.as_sample(parent.request->unfinished - parent.to_fork);
    --parent.to_fork;
    --promised_forks_;
    ++instruments_.counters.forks;
    admission_.pass_on(parent, *child);
    children.push_back(std::move(child));
  }
  running_.insert(running_.begin() + static_cast<std::ptrdiff_t>(root) + 1,
                  std::make_move_iterator(children.begin()),
                  std::make_move_iterator(children.end()));
  return std::nullopt;
}

MaybeFailure StepEngine::finish(Job& job) {
  if (instruments_.verifier != nullptr) {
    if (auto failure = instruments_.verifier->check_sequence(job)) return failure;
  }
  const auto info = pool_.tables().info(job.sequence);
  if (!info) return unexpected("info", info.status());
  instruments_.ledger.finish_sequence(info->length_tokens, info->num_blocks);
  if (instruments_.observer != nullptr) instruments_.observer->before_destroy(pool_, job);
  if (Status status = pool_.destroy(job.sequence); !status) return unexpected("destroy", status);
  if (--job.request->unfinished == 0) {
    instruments_.ledger.finish_request(*job.request->trace, now_ns_);
  }
  return std::nullopt;
}

MaybeFailure StepEngine::finish_step() {
  bool any_finished = false;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Job& job = *running_[i];
    if (job.to_fork > 0 && job.decodes()) {
      if (auto failure = fork_samples(i)) return failure;
    }
    if (!running_[i]->is_finished()) continue;
    if (auto failure = finish(*running_[i])) return failure;
    running_[i].reset();
    any_finished = true;
  }
  if (!any_finished) return std::nullopt;
  std::erase_if(running_, [](const JobPtr& job) { return job == nullptr; });
  record();
  return std::nullopt;
}

MaybeFailure StepEngine::step() {
  if (Status status = pool_.begin_step(); !status) return unexpected("begin_step", status);
  plan_running();
  if (auto failure = admit()) return failure;
  if (running_.empty()) return blocks_lost(*waiting_.front());
  if (auto failure = grow()) return failure;
  record();
  if (instruments_.verifier != nullptr) {
    written_.clear();
    for (const JobRow& row : rows_) written_.push_back({row.job, row.tokens});
    if (auto failure = instruments_.verifier->verify_step(written_, pool_.states())) return failure;
  }
  if (Status status = pool_.end_step(); !status) return unexpected("end_step", status);
  pass_time();
  if (time_overflow_) return time_overflow(*running_.front()->request->trace);
  if (instruments_.observer != nullptr) instruments_.observer->between_steps(pool_, running_);
  return finish_step();
}

MaybeFailure StepEngine::run() {
  if (feed_.peek() != nullptr) record();
  while (true) {
    take_arrivals();
    if (running_.empty() && waiting_.empty()) {
      if (Status status = pool_.publish(); !status) return unexpected("publish", status);
      const TraceRequest* next = feed_.peek();
      if (options_.trace.is_stopped()) return interrupted();
      if (next == nullptr) break;
      now_ns_ = next->arrival_us * 1000;
      continue;
    }
    if (auto failure = step()) return failure;
    if (options_.trace.is_stopped()) return interrupted();
    instruments_.report_progress(now_ns_, waiting_.size());
  }
  return feed_.failure();
}

}  // namespace kvarena::replay
