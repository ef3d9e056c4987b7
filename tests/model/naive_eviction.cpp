#include "model/naive_eviction.hpp"

#include <algorithm>

namespace kvarena::model {

void NaiveEviction::arrive(BlockId id, std::uint64_t run) {
  const bool goes_on = run != 0 && run == run_;
  run_length_ = goes_on ? run_length_ + 1 : 1;
  run_ = run;
  // The run is the end of the list; head_first puts each of its blocks before the others.
  const std::size_t place =
      policy_ == EvictionPolicy::head_first ? arrived_.size() + 1 - run_length_ : arrived_.size();
  arrived_.insert(arrived_.begin() + static_cast<std::ptrdiff_t>(place), id);
  if (policy_ != EvictionPolicy::fifo) return;
  if (passed_.erase(id) != 0) {
    overdue_.push_back(id);
  } else if (std::ranges::find(queue_, id) == queue_.end()) {
    queue_.push_back(id);
  }
}

void NaiveEviction::leave(BlockId id) {
  run_ = 0;
  std::erase(arrived_, id);
  if (std::erase(overdue_, id) != 0) passed_.insert(id);
}

void NaiveEviction::forget(BlockId id) {
  if (contains(id)) leave(id);
  known_.erase(id);
  std::erase(queue_, id);
  passed_.erase(id);
}

BlockId NaiveEviction::evict() {
  const BlockId id = first();
  forget(id);
  return id;
}

BlockId NaiveEviction::first() {
  switch (policy_) {
    case EvictionPolicy::tail_first:
    case EvictionPolicy::head_first: return arrived_.front();
    case EvictionPolicy::fifo:
      if (!overdue_.empty()) return overdue_.front();
      while (!contains(queue_.front())) {
        passed_.insert(queue_.front());
        queue_.erase(queue_.begin());
      }
      return queue_.front();
    case EvictionPolicy::lfu:
      return *std::ranges::min_element(arrived_, {}, [this](BlockId id) { return uses(id); });
    case EvictionPolicy::priority:
      return *std::ranges::min_element(arrived_, {},
                                       [this](BlockId id) { return retention(id).priority; });
  }
  return kNoBlock;
}

std::int64_t NaiveEviction::uses(BlockId id) const {
  const auto found = known_.find(id);
  return found == known_.end() ? 1 : found->second.uses;
}

void NaiveEviction::set_retention(BlockId id, const RetentionHint& retention) {
  known_[id].retention = retention;
  if (!contains(id)) return;
  leave(id);
  arrive(id, 0);
}

void NaiveEviction::advance_clock(std::int64_t now) {
  std::vector<BlockId> ended;
  for (const BlockId id : arrived_) {
    const std::int64_t end = retention(id).expires_at;
    if (end != RetentionHint::kNever && end <= now) ended.push_back(id);
  }
  std::ranges::stable_sort(ended, {}, [this](BlockId id) { return retention(id).expires_at; });
  for (const BlockId id : ended) {
    known_[id].retention = {};
    leave(id);
    arrive(id, 0);
  }
  clock_ = now;
}

RetentionHint NaiveEviction::retention(BlockId id) const {
  const auto found = known_.find(id);
  const bool is_in_force = found != known_.end() && found->second.retention.expires_at > clock_;
  return is_in_force ? found->second.retention : RetentionHint{};
}

bool NaiveEviction::contains(BlockId id) const {
  return std::ranges::find(arrived_, id) != arrived_.end();
}

}  // namespace kvarena::model
