#include "replay/engines.hpp"

#include <algorithm>
#include <functional>
#include <limits>

namespace kvarena::replay {
namespace {

// Tokens of one append; the tables' scratch is sized for that many.
constexpr std::int64_t kChunkTokens = 1 << 20;

}  // namespace

LinearEngine::LinearEngine(const ReplayOptions& options, ArrivalFeed& feed, EnginePool& pool,
                           Instruments& instruments)
    : options_(options),
      feed_(feed),
      pool_(pool),
      instruments_(instruments),
      kept_(pool),
      admission_(options, pool, kept_) {}

void LinearEngine::record() {
  instruments_.meter.record(now_ns_, {.blocks = pool_.held_blocks(),
                                      .running = static_cast<std::int64_t>(holds_.size()),
                                      .waiting = static_cast<std::int64_t>(waiting_.size()),
                                      .tokens = pool_.tables().stats().tokens,
                                      .preemptions = 0,
                                      .completed = instruments_.ledger.completed(),
                                      .pages = instruments_.page_use(now_ns_, pool_.manager())});
}

void LinearEngine::take_arrival() {
  auto request = feed_.take();
  instruments_.ledger.arrive(*request);
  if (const std::string why = admission_.reason_never(*request); !why.empty()) {
    instruments_.ledger.reject(*request, why);
    return;
  }
  auto job = std::make_unique<Job>();
  job->request = std::make_shared<ActiveRequest>();
  job->prefill_length = request->input_tokens;
  job->request->trace = std::move(request);
  if (pool_.has_prefix_cache()) {
    job->request->content = content_of(*job->request->trace);
    job->stream = {job->request->content, 0};
  }
  waiting_.push_back(std::move(job));
}

// Appends in calls of bounded size. The blocks are there already. With groups they are promised,
// for steps of a block.
MaybeFailure LinearEngine::grow(Job& job, std::int64_t tokens) {
  const std::int64_t most = pool_.units().has_groups() ? pool_.block_size() : kChunkTokens;
  while (tokens > 0) {
    const std::int64_t chunk = std::min(tokens, most);
    tokens_.clear();
    if (pool_.has_prefix_cache()) job.append_tokens(job.length, chunk, tokens_);
    const AppendDemand demand{.sequence = job.sequence,
                              .num_tokens = static_cast<std::int32_t>(chunk),
                              .tokens = tokens_};
    if (Status status = pool_.append({&demand, 1}); !status) return unexpected("append", status);
    pool_.settle();
    job.length += chunk;
    tokens -= chunk;
  }
  return std::nullopt;
}

MaybeFailure LinearEngine::start(std::unique_ptr<Job> job) {
  const auto end_ns = linear_end_ns(*job->request->trace, job->cached, now_ns_, options_.costs);
  if (!end_ns) return time_overflow(*job->request->trace);
  const std::int64_t computed = job->request->trace->input_tokens - job->cached;
  if (auto failure = grow(*job, computed)) return failure;
  instruments_.ledger.start(*job->request->trace, now_ns_);
  instruments_.counters.prefill_tokens += computed;
  instruments_.counters.cached_tokens += job->cached;
  holds_.push_back({*end_ns, started_++, std::move(job)});
  std::push_heap(holds_.begin(), holds_.end(), std::greater<>());
  record();
  return std::nullopt;
}

MaybeFailure LinearEngine::start_waiting() {
  const auto limit = static_cast<std::size_t>(options_.limits.max_running);
  while (!waiting_.empty() && (limit == 0 || holds_.size() < limit)) {
    const Admitted answer = admission_.offer(*waiting_.front(), 0, 0);
    if (answer == Admitted::failed) return unexpected("admission", admission_.failure());
    if (answer == Admitted::later) break;
    auto job = std::move(waiting_.front());
    waiting_.pop_front();
    if (auto failure = start(std::move(job))) return failure;
  }
  if (waiting_.empty() || !holds_.empty()) return std::nullopt;
  const ActiveRequest& request = *waiting_.front()->request;
  const std::int64_t needed = pool_.units().of_length(request.final_length());
  return lost_blocks(*request.trace, pool_.explain(needed, Urgency::admission));
}

MaybeFailure LinearEngine::finish(Job& job) {
  if (auto failure = grow(job, job.request->trace->output_tokens)) return failure;
  const auto info = pool_.tables().info(job.sequence);
  if (!info) return unexpected("info", info.status());
  instruments_.ledger.finish_sequence(info->length_tokens, info->num_blocks);
  instruments_.counters.decode_tokens += job.request->trace->output_tokens;
  if (instruments_.observer != nullptr) instruments_.observer->before_destroy(pool_, job);
  if (Status status = pool_.destroy(job.sequence); !status) return unexpected("destroy", status);
  instruments_.ledger.finish_request(*job.request->trace, now_ns_);
  instruments_.report_progress(now_ns_, waiting_.size());
  return std::nullopt;
}

MaybeFailure LinearEngine::end_holds_until(std::int64_t time_ns) {
  while (!holds_.empty() && holds_.front().end_ns <= time_ns) {
    now_ns_ = holds_.front().end_ns;
    while (!holds_.empty() && holds_.front().end_ns == now_ns_) {
      std::pop_heap(holds_.begin(), holds_.end(), std::greater<>());
      const auto job = std::move(holds_.back().job);
      holds_.pop_back();
      if (auto failure = finish(*job)) return failure;
    }
    record();
    if (auto failure = start_waiting()) return failure;
  }
  return std::nullopt;
}

MaybeFailure LinearEngine::arrive(std::int64_t arrival_ns) {
  if (Status status = pool_.begin_step(); !status) return unexpected("begin_step", status);
  if (auto failure = end_holds_until(arrival_ns)) return failure;
  now_ns_ = arrival_ns;
  take_arrival();
  if (auto failure = start_waiting()) return failure;
  if (Status status = pool_.end_step(); !status) return unexpected("end_step", status);
  return std::nullopt;
}

MaybeFailure LinearEngine::run() {
  if (feed_.peek() != nullptr) record();
  while (const TraceRequest* next = feed_.peek()) {
    if (auto failure = arrive(next->arrival_us * 1000)) return failure;
  }
  if (options_.trace.is_stopped()) return interrupted();
  if (auto failure = feed_.failure()) return failure;
  if (auto failure = end_holds_until(std::numeric_limits<std::int64_t>::max())) return failure;
  if (Status status = pool_.publish(); !status) return unexpected("publish", status);
  return std::nullopt;
}

}  // namespace kvarena::replay
