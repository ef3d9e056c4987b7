#include "replay/arrivals.hpp"

#include "replay/pool_units.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace kvarena::replay {
namespace {

template <class T>
using MinHeap = std::priority_queue<T, std::vector<T>, std::greater<>>;

// The peak of holds that each begin at a request's arrival, ends before starts.
class HoldPeak {
 public:
  void add(std::int64_t start_ns, std::int64_t end_ns, std::int64_t blocks) {
    while (!ends_.empty() && ends_.top().first <= start_ns) {
      held_ -= ends_.top().second;
      ends_.pop();
    }
    ends_.emplace(end_ns, blocks);
    held_ += blocks;
    peak_blocks_ = std::max(peak_blocks_, held_);
    peak_requests_ = std::max(peak_requests_, static_cast<std::int64_t>(ends_.size()));
  }
  std::int64_t peak_blocks() const { return peak_blocks_; }
  std::int64_t peak_requests() const { return peak_requests_; }

 private:
  MinHeap<std::pair<std::int64_t, std::int64_t>> ends_;
  std::int64_t held_ = 0;
  std::int64_t peak_blocks_ = 0;
  std::int64_t peak_requests_ = 0;
};

// The sum of the largest `count` values, or of all for count 0.
class LargestSum {
 public:
  explicit LargestSum(std::int64_t count) : count_(static_cast<std::size_t>(count)) {}
  void add(std::int64_t value) {
    sum_ += value;
    if (count_ == 0) return;
    kept_.push(value);
    if (kept_.size() <= count_) return;
    sum_ -= kept_.top();
    kept_.pop();
  }
  std::int64_t sum() const { return sum_; }

 private:
  std::size_t count_;
  MinHeap<std::int64_t> kept_;
  std::int64_t sum_ = 0;
};

}  // namespace

ArrivalFeed::ArrivalFeed(trace::TraceReader reader, std::int64_t max_requests)
    : reader_(std::move(reader)), max_requests_(max_requests) {}

const TraceRequest* ArrivalFeed::peek() {
  if (next_ != nullptr) return next_.get();
  if (ended_ || (max_requests_ > 0 && requests_ == max_requests_)) return nullptr;
  auto read = reader_.next();
  failed_ = !read.is_ok();
  ended_ = failed_ || !read->has_value();
  if (!ended_) next_ = std::make_shared<TraceRequest>(std::move(**read));
  return next_.get();
}

std::shared_ptr<const TraceRequest> ArrivalFeed::take() {
  ++requests_;
  input_tokens_ += next_->input_tokens;
  output_tokens_ += next_->output_tokens;
  return std::exchange(next_, nullptr);
}

MaybeFailure ArrivalFeed::failure() const {
  if (!failed_) return std::nullopt;
  return ReplayFailure{ReplayEnd::bad_input, reader_.failure()};
}

std::optional<std::int64_t> linear_end_ns(const TraceRequest& request, std::int64_t cached,
                                          std::int64_t start_ns,
                                          const ReplayCosts& costs) noexcept {
  std::int64_t prefill = 0;
  std::int64_t decode = 0;
  std::int64_t end = 0;
  if (__builtin_mul_overflow(request.input_tokens - cached, costs.prefill_ns, &prefill) ||
      __builtin_mul_overflow(request.output_tokens, costs.decode_ns, &decode) ||
      __builtin_add_overflow(prefill, decode, &end) ||
      __builtin_add_overflow(end, start_ns, &end)) {
    return std::nullopt;
  }
  return end;
}

TraceSurvey survey_without_reading(const ReplayOptions& options) noexcept {
  constexpr std::int64_t kMostSequences = std::int64_t{1} << 20;
  constexpr std::int64_t kLongest = trace::kMaxInputTokens + trace::kMaxOutputTokens;
  const ReplayLimits& limits = options.limits;
  TraceSurvey survey;
  survey.longest_tokens =
      limits.max_context_tokens > 0 ? std::min(limits.max_context_tokens, kLongest) : kLongest;
  survey.worst_sequences =
      limits.max_running > 0 ? std::min(limits.max_running, kMostSequences) : kMostSequences;
  return survey;
}

std::optional<ReplayFailure> survey_trace(ArrivalFeed& feed, const ReplayOptions& options,
                                          TraceSurvey& survey) {
  const auto units = PoolUnits::create(options);
  if (!units) return unexpected("the pool's units", units.status());
  const std::int64_t samples = options.samples;
  const ReplayLimits& limits = options.limits;
  const bool exact = options.clock == ClockKind::linear && limits.max_running == 0 &&
                     !options.pool.num_blocks && !options.pool.pool_bytes;
  HoldPeak holds;
  const std::int64_t at_a_time = (limits.max_running + samples - 1) / samples;
  LargestSum largest(at_a_time);
  LargestSum longest(at_a_time);
  while (feed.peek() != nullptr) {
    const auto request = feed.take();
    const std::int64_t length = request->input_tokens + request->output_tokens;
    survey.tokens += request->input_tokens + samples * request->output_tokens;
    if (limits.max_context_tokens > 0 && length > limits.max_context_tokens) continue;
    survey.longest_tokens = std::max(survey.longest_tokens, length);
    const std::int64_t blocks = units->of_length(length);
    largest.add(samples * blocks + (samples > 1 ? samples * units->of_fork() + 1 : 0));
    longest.add(samples * length);
    if (!exact) continue;
    const std::int64_t start_ns = request->arrival_us * 1000;
    const auto end_ns = linear_end_ns(*request, 0, start_ns, options.costs);
    if (!end_ns) return time_overflow(*request);
    holds.add(start_ns, *end_ns, blocks);
  }
  survey.requests = feed.requests();
  const std::int64_t sequences = survey.requests * samples;
  const std::int64_t step_tokens = limits.max_batched_tokens > 0
                                       ? std::min(limits.max_batched_tokens, longest.sum())
                                       : longest.sum();
  survey.worst_blocks = std::max<std::int64_t>(
      1, exact ? holds.peak_blocks() : largest.sum() + units->of_step(step_tokens));
  survey.worst_sequences = exact                    ? holds.peak_requests()
                           : limits.max_running > 0 ? std::min(limits.max_running, sequences)
                                                    : sequences;
  survey.worst_sequences = std::max<std::int64_t>(1, survey.worst_sequences);
  return feed.failure();
}

}  // namespace kvarena::replay
