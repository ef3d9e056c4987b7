#include "scenarios/overload.hpp"

#include <algorithm>

namespace kvarena::scenarios {

MaybeFailure Overload::run(std::vector<OverloadRequest> requests) {
  requests_.assign(requests.begin(), requests.end());
  while (!requests_.empty() || !preempted_.empty() || !running_.empty()) {
    if (auto failure = admit()) return failure;
    if (running_.empty()) {
      return Failure{RunEnd::check_failed,
                     {.found = "nothing runs and nothing is admitted: " +
                               engine_.cache().describe(figures_.first_refusal),
                      .expected = "room for one sequence in an empty pool",
                      .advice = "blocks were lost"}};
    }
    if (auto failure = grow()) return failure;
    if (auto failure = finish()) return failure;
  }
  return std::nullopt;
}

// A sequence is admitted when blocks for all that it begins with are taken.
MaybeFailure Overload::admit() {
  while (!preempted_.empty() || !requests_.empty()) {
    if (std::ssize(running_) == engine_.options().max_sequences) return std::nullopt;
    Job* job = nullptr;
    if (!preempted_.empty()) {
      job = preempted_.front();
      if (Status s = engine_.resume(*job); !s) return unexpected("create_sequence", s);
    } else {
      const auto added =
          engine_.add(requests_.front().prompt_tokens, requests_.front().output_tokens);
      if (!added) return unexpected("create_sequence", added.status());
      job = *added;
    }
    const Status secured = engine_.cache().reserve_capacity(job->sequence, job->prefill_length);
    if (!secured && secured.code != StatusCode::exhausted) {
      return unexpected("reserve_capacity", secured);
    }
    const bool is_back = !preempted_.empty();
    if (secured) {
      is_back ? preempted_.pop_front() : requests_.pop_front();
      running_.push_back(job);
      continue;
    }
    if (figures_.admissions_refused++ == 0) figures_.first_refusal = secured;
    return is_back ? engine_.preempt(*job) : engine_.remove(*job);
  }
  return std::nullopt;
}

MaybeFailure Overload::preempt_newest(const Status& cause) {
  if (cause.code != StatusCode::exhausted || running_.size() == 1) {
    return Failure{RunEnd::check_failed,
                   {.found = "a step was refused: " + engine_.cache().describe(cause),
                    .expected = "room for one sequence in an empty pool",
                    .advice = "blocks were lost"}};
  }
  Job* const victim = running_.back();
  running_.pop_back();
  ++figures_.preemptions;
  figures_.recomputed_tokens += victim->length;
  preempted_.push_front(victim);
  return engine_.preempt(*victim);
}

// Prompts are computed whole; whoever was admitted decodes from the step after on.
MaybeFailure Overload::grow() {
  figures_.most_running = std::max(figures_.most_running, std::ssize(running_));
  while (true) {
    rows_.clear();
    std::int64_t budget = engine_.options().max_step_tokens;
    for (Job* job : running_) {
      const std::int64_t tokens = job->decodes() ? 1 : job->prefill_length - job->length;
      const std::int64_t chunk = std::min(tokens, budget);
      if (chunk > 0) rows_.push_back({job, static_cast<std::int32_t>(chunk)});
      budget -= chunk;
    }
    StepOutcome outcome = engine_.step(rows_, StepWork::attend);
    if (outcome.failure) return std::move(outcome.failure);
    if (outcome.refused) break;
    if (auto failure = preempt_newest(outcome.refused)) return failure;
  }
  ++figures_.steps;
  return std::nullopt;
}

MaybeFailure Overload::finish() {
  for (Job*& job : running_) {
    if (!job->is_finished()) continue;
    ++figures_.finished;
    figures_.tokens_finished += job->length;
    if (auto failure = engine_.finish(*job)) return failure;
    job = nullptr;
  }
  std::erase(running_, nullptr);
  return std::nullopt;
}

}  // namespace kvarena::scenarios
