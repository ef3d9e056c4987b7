#include "replay/pure_cache.hpp"

#include "base/excerpt.hpp"
#include "replay/arrivals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

namespace kvarena::replay {
namespace {

double ratio(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

ReplayFailure without_ids(const PureCacheOptions& options, trace::TraceFormat format) {
  return {ReplayEnd::bad_input,
          {.subject = options.trace.path == "-" ? "standard input" : printable(options.trace.path),
           .found = fmt::format("a trace in the format {}, which has no hash ids", name_of(format)),
           .expected = "hash ids, which tell the prompts' shared blocks (mooncake, agent, vllm)",
           .advice = "choose a trace with hash ids"}};
}

ReplayFailure without_memory(const PureCacheOptions& options) {
  return {ReplayEnd::does_not_fit,
          {.found = fmt::format("no memory for a cache of {} blocks", options.capacity_blocks),
           .expected = "memory for the ids of all blocks in the cache",
           .advice = "give a smaller cache"}};
}

void count_request(const TraceRequest& request, PureCache& cache, PureCacheReport& report) {
  const std::int64_t hits = cache.match(request.prefix_blocks, request.salt);
  cache.touch(request.prefix_blocks, request.salt);
  report.block_tokens = request.prefix_block_tokens;
  report.block_refs += static_cast<std::int64_t>(request.prefix_blocks.size());
  report.hit_blocks += hits;
  report.hit_tokens += std::min(hits * request.prefix_block_tokens, request.input_tokens);
  report.requests_with_hit += hits > 0 ? 1 : 0;
}

// The totals of the feed and the cache so far.
void take_totals(const ArrivalFeed& feed, const PureCache& cache, PureCacheReport& report) {
  report.trace_format = name_of(feed.format());
  report.requests = feed.requests();
  report.salts = feed.num_salts();
  report.input_tokens = feed.input_tokens();
  report.evictions = cache.evictions();
  report.cached_blocks = cache.size();
}

MaybeFailure play(const PureCacheOptions& options, ProgressSink* sink, PureCacheOutcome& outcome) {
  Finding defect;
  auto reader = trace::TraceReader::open(options.trace, &defect);
  if (!reader) return ReplayFailure{ReplayEnd::bad_input, std::move(defect)};
  if (reader->format() == trace::TraceFormat::azure) return without_ids(options, reader->format());
  ArrivalFeed feed(std::move(*reader), options.max_requests);
  PureCache cache(options.policy, options.capacity_blocks);
  ReplayProgress progress;
  while (feed.peek() != nullptr) {
    count_request(*feed.take(), cache, outcome.report);
    if (sink == nullptr) continue;
    progress.requests_done = feed.requests();
    progress.tokens_done = feed.input_tokens();
    sink->on_progress(progress);
  }
  take_totals(feed, cache, outcome.report);
  return feed.failure();
}

}  // namespace

PureCache::PureCache(EvictionPolicy policy, std::int64_t capacity_blocks)
    : capacity_(capacity_blocks), order_(policy, capacity_blocks) {}

std::int64_t PureCache::match(std::span<const std::int64_t> ids, std::uint64_t salt) const {
  const auto first_absent = std::ranges::find_if(ids, [this, salt](std::int64_t id) {
    return !blocks_.contains(Key{id, salt});
  });
  return first_absent - ids.begin();
}

void PureCache::touch(std::span<const std::int64_t> ids, std::uint64_t salt) {
  if (begins_at_tail(order_.policy())) {
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) touch(Key{*id, salt});
  } else {
    for (const std::int64_t id : ids) touch(Key{id, salt});
  }
}

// The block to evict is chosen before the new one enters the order.
void PureCache::touch(const Key& key) {
  const auto [place, is_new] = blocks_.try_emplace(key, kNoBlock);
  if (!is_new) return order_.touch(place->second);
  BlockId block = order_.next();
  if (size() < capacity_) {
    block = BlockId(static_cast<std::int32_t>(keys_.size()));
    keys_.push_back(key);
  } else {
    Key& evicted = keys_[static_cast<std::size_t>(block.value)];
    order_.remove(block);
    blocks_.erase(evicted);
    evicted = key;
    ++evictions_;
  }
  place->second = block;
  order_.insert(block);
}

double PureCacheReport::block_hit_rate() const noexcept { return ratio(hit_blocks, block_refs); }

double PureCacheReport::token_hit_rate() const noexcept { return ratio(hit_tokens, input_tokens); }

PureCacheOutcome run_pure_cache(const PureCacheOptions& options, ProgressSink* sink) {
  PureCacheOutcome outcome;
  MaybeFailure failure;
  try {
    failure = play(options, sink, outcome);
  } catch (const std::bad_alloc&) {
    failure = without_memory(options);
  }
  const bool is_stopped = options.trace.is_stopped();
  if (is_stopped) failure = interrupted();
  if (failure) {
    outcome.end = failure->end;
    outcome.why = std::move(failure->why);
  }
  outcome.has_report = !failure || (is_stopped && outcome.report.requests > 0);
  return outcome;
}

}  // namespace kvarena::replay
