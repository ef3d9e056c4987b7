#include "replay/arrival_feed.hpp"

#include <fmt/format.h>

#include <utility>

namespace kvarena::replay {

ReplayFailure bad_trace(const trace::ParseFailure& defect) {
  return {ReplayEnd::bad_input, fmt::format("{}: found {}", place_of(defect), defect.found),
          defect.expected,
          defect.advice.empty()
              ? "correct the trace; docs/reference/traces.md describes the formats"
              : defect.advice};
}

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
  return bad_trace(reader_.failure());
}

}  // namespace kvarena::replay
