#include "scenarios/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace kvarena::scenarios {
namespace {

constexpr std::int64_t kPromptPart = 4;  // a prompt has up to this part of the context
constexpr std::int64_t kStride = 7919;   // from one length to the next; a prime

}  // namespace

MaybeFailure MixedSequences::run() {
  if (auto failure = admit()) return failure;
  if (auto failure = decode()) return failure;
  while (!running_.empty()) {
    if (auto failure = end_newest()) return failure;
  }
  report_.add("sequences_admitted", admitted_);
  report_.add("preemptions", preemptions_);
  const PageStats pages = cache_.manager().page_stats();
  report_.expect_equal("refused steps that changed something", 0, refusals_with_changes_);
  // Checkpoints of states stay cached.
  report_.expect_equal("pages free or evictable at the end", pages.num_pages, pages.available());
  report_.expect_equal("sequences at the end", 0, cache_.tables().stats().sequences);
  expect_whole("invariants at the end");
  return std::nullopt;
}

void MixedSequences::expect_whole(const char* what) {
  const Status status = cache_.check_invariants();
  report_.expect_same(what, "ok", status ? "ok" : describe(status));
}

/// Admits sequences of mixed lengths until one is refused.
MaybeFailure MixedSequences::admit() {
  context_.progress("sequences until one is refused");
  const std::int64_t longest =
      std::max<std::int64_t>(context_.model().max_context_tokens / kPromptPart, 2);
  while (admitted_ < kMost) {
    const Result<SequenceId> made = cache_.create_sequence();
    if (!made) return unexpected("create_sequence", made.status());
    const std::int64_t tokens = 1 + (admitted_ * kStride + context_.options.seed) % longest;
    StepOutcome outcome = grow(*made, tokens);
    if (outcome.failure) return std::move(outcome.failure);
    if (!outcome.refused) {
      expect_refused(outcome.refused);
      return make_room(*made, tokens);
    }
    running_.push_back(*made);
    ++admitted_;
  }
  report_.expect("a sequence too many", "exhausted (page) of a group", "none was refused", false);
  return std::nullopt;
}

void MixedSequences::expect_refused(const Status& refused) {
  const Explanation e = cache_.tables().explain(refused);
  report_.expect_same(
      "a sequence too many", "exhausted (page) of a group",
      fmt::format("{} ({}) of {} group", name_of(refused.code), name_of(refused.resource),
                  refused.subject < e.num_groups ? "a" : "no"));
  report_.expect_same("its explanation", "does not fit, pages are missing",
                      fmt::format("{}, {}", e.fits ? "fits" : "does not fit",
                                  e.missing > 0 ? "pages are missing" : "no page is missing"));
  report_.add("group_refused_at_admission", static_cast<std::int64_t>(refused.subject));
  report_.add("explanation_of_the_refusal", to_string(e));
  expect_whole("invariants after the refusal");
}

/// The oldest sequences end until the one that was refused fits.
MaybeFailure MixedSequences::make_room(SequenceId refused, std::int64_t tokens) {
  std::int64_t ended = 0;
  bool fits = false;
  if (auto failure = end(refused)) return failure;
  while (!running_.empty() && !fits) {
    if (auto failure = end(running_.front())) return failure;
    running_.erase(running_.begin());
    ++ended;
    const Result<SequenceId> made = cache_.create_sequence();
    if (!made) return unexpected("create_sequence", made.status());
    StepOutcome outcome = grow(*made, tokens);
    if (outcome.failure) return std::move(outcome.failure);
    fits = outcome.refused.is_ok();
    if (fits) {
      running_.push_back(*made);
    } else if (auto failure = end(*made)) {
      return failure;
    }
  }
  report_.add("sequences_ended_to_make_room", ended);
  report_.expect_same("the refused sequence, once others have ended", "fits",
                      fits ? "fits" : "refused");
  return std::nullopt;
}

/// Every sequence grows by blocks until a step is refused and the newest give way; then the others
/// decode.
MaybeFailure MixedSequences::decode() {
  const std::int64_t block = context_.model().shape.block_size_tokens;
  const std::int64_t longest = context_.model().max_context_tokens;
  context_.progress(fmt::format("{} sequences grow until a step is refused", running_.size()));
  // No sequence is longer than this yet.
  std::int64_t length = longest / kPromptPart + 1;
  for (; preemptions_ == 0 && length + 2 * block <= longest; length += block) {
    if (auto failure = grow_all(static_cast<std::int32_t>(block))) return failure;
  }
  report_.expect_at_least("refused steps of running sequences", 1, preemptions_);
  context_.progress(fmt::format("{} sequences decode", running_.size()));
  for (std::int64_t i = 0; i < block; ++i) {
    if (auto failure = grow_all(1)) return failure;
  }
  expect_whole("invariants after decoding");
  report_.expect_at_least("sequences that decoded to the end", 1, std::ssize(running_));
  return std::nullopt;
}

/// Grows all sequences in one step, without the newest ones if it is refused.
MaybeFailure MixedSequences::grow_all(std::int32_t tokens) {
  while (!running_.empty()) {
    std::vector<AppendDemand> demands;
    for (const SequenceId id : running_) demands.push_back({id, tokens});
    StepOutcome outcome = step(demands, Urgency::growth);
    if (outcome.failure) return std::move(outcome.failure);
    if (outcome.refused) return std::nullopt;
    ++preemptions_;
    if (auto failure = end_newest()) return failure;
  }
  return std::nullopt;
}

MaybeFailure MixedSequences::end(SequenceId sequence) {
  const Status status = cache_.destroy(sequence);
  if (!status) return unexpected("destroy", status);
  return std::nullopt;
}

MaybeFailure MixedSequences::end_newest() {
  const SequenceId newest = running_.back();
  running_.pop_back();
  return end(newest);
}

/// Grows a new sequence in chunks.
StepOutcome MixedSequences::grow(SequenceId sequence, std::int64_t tokens) {
  const std::int64_t most = std::max<std::int64_t>(context_.sizes().chunk_tokens, 1);
  for (std::int64_t done = 0; done < tokens;) {
    const auto chunk = static_cast<std::int32_t>(std::min(most, tokens - done));
    const AppendDemand demand{sequence, chunk};
    StepOutcome outcome = step({&demand, 1}, Urgency::admission);
    if (outcome.failure || !outcome.refused) return outcome;
    done += chunk;
  }
  return {};
}

StepOutcome MixedSequences::step(std::span<const AppendDemand> demands, Urgency urgency) {
  if (is_stopped(context_.options.stop)) return {{}, interruption()};
  const PageStats pages = cache_.manager().page_stats();
  const BlockStats blocks = cache_.manager().stats();
  if (Status s = cache_.begin_step(); !s) return {{}, unexpected("begin_step", s)};
  const Result<StepBatch> batch = cache_.append(demands, urgency);
  if (Status s = cache_.end_step(); !s) return {{}, unexpected("end_step", s)};
  if (batch) return {};
  if (batch.status().code != StatusCode::exhausted) {
    return {{}, unexpected("append", batch.status())};
  }
  const bool is_same = cache_.manager().page_stats().free == pages.free &&
                       cache_.manager().stats().references == blocks.references &&
                       cache_.manager().stats().allocations == blocks.allocations;
  refusals_with_changes_ += is_same ? 0 : 1;
  return {batch.status(), std::nullopt};
}

}  // namespace kvarena::scenarios
