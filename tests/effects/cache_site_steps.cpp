#include "effects/cache_site.hpp"

#include <algorithm>

namespace kvarena::test {
namespace {

/// Whether the device did not take the work.
bool is_by_device(const Status& status) {
  return status.code == StatusCode::device_error ||
         (status.code == StatusCode::exhausted && status.resource == Resource::stream);
}

}  // namespace

/// Begins a step unless one has begun, on `stream` or on the last step's.
bool CacheSite::enter_step(StreamId stream) {
  if (is_in_step_) return true;
  std::vector<std::size_t> ended;  // readers whose tickets may not outlive this call
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    if (readers_[i].is_open && must_retire(readers_[i])) ended.push_back(i);
  }
  const bool had_failed = device_.faulty.has_failed();
  const bool is_elsewhere = stream != StreamId{} && stream != cache_.stream();
  const Status status = cache_.begin_step({.stream = stream});
  story_.tell(site_,
              status
                  ? std::string(is_elsewhere ? "a step begins on another stream" : "a step begins")
                  : std::string("begin_step fails: ") + std::string(name_of(status.code)));
  is_in_step_ = static_cast<bool>(status);
  if (is_in_step_) is_loss_pending_ = false;
  find_retired();
  if (!is_in_step_) return false;
  forget_append();
  ++num_steps_;
  for (const std::size_t i : ended) {
    if (readers_[i].is_open && had_failed == device_.faulty.has_failed()) {
      fail("ticket kept",
           "begin_step left the ticket of reader " + std::to_string(readers_[i].name) + " open");
    }
  }
  return true;
}

void CacheSite::begin_step(const Numbers& n) {
  const std::array<StreamId, 4> streams{StreamId{}, home_, device_.streams[0], device_.streams[1]};
  static_cast<void>(enter_step(streams[n[0] % streams.size()]));
}

void CacheSite::forget_append() {
  has_appended_ = false;
  growths_.clear();
  step_words_.clear();
}

/// A call that ends the step has failed: the step goes on, and the call works once the device does.
template <class Call>
void CacheSite::end_with(const char* name, Call call) {
  Status status = call();
  for (int i = 0; i < 2 && is_by_device(status); ++i) {
    story_.tell(site_, name, " fails: ", name_of(status.code));
    run_by_hand(cache_.stream());
    status = call();
  }
  if (!status)
    fail("step", std::string(name) + " ended no step: " + std::string(name_of(status.code)));
  is_in_step_ = false;
}

void CacheSite::leave_step() {
  if (!is_in_step_) return;
  end_floors_of_step();
  end_with("end_step", [&] { return cache_.end_step(); });
  story_.tell(site_, "the step ends");
  forget_append();
}

/// Gives the step up: its sequences find their tokens of before.
void CacheSite::abort_step(const Numbers& /*n*/) {
  if (!is_in_step_) return;
  after_.look(cache_.manager(), cache_.tables());
  const bool is_untouched = has_appended_ && after_ == appended_;
  end_floors_of_step();
  end_with("abort_step", [&] { return cache_.abort_step(); });
  story_.tell(site_, "the step is aborted",
              has_appended_ ? ", its append taken back" : ", it had no append");
  for (const Growth& growth : growths_) {
    const auto sequence = std::find_if(sequences_.begin(), sequences_.end(),
                                       [&](const Sequence& s) { return s.id == growth.id; });
    if (sequence == sequences_.end()) continue;
    sequence->words.resize(std::min(sequence->words.size(), growth.length));
    sequence->coming.clear();
    check_on_home(*sequence);
  }
  if (is_untouched) require_former("abort_step", num_copies_ == 0);
  forget_append();
}

/// What a step's append changed is as it was. Copies on write may have been kept.
void CacheSite::require_former(const char* name, bool with_blocks) {
  (with_blocks ? after_ : after_without_blocks_)
      .look_at_standing(cache_.manager(), cache_.tables(), with_blocks);
  if (with_blocks ? after_ == former_ : after_without_blocks_ == former_without_blocks_) return;
  fail(name, std::string(name) + " did not bring back what was there before the append");
}

std::vector<AppendDemand> CacheSite::demands_of(const Numbers& n) {
  std::vector<AppendDemand> demands;
  told_.clear();
  if (sequences_.empty()) return demands;
  for (const std::size_t i : several(n, sequences_.size())) {
    const auto tokens =
        static_cast<std::int32_t>((n[2] * (demands.size() + 1)) %
                                  static_cast<std::uint32_t>(2 * options_.block_size_tokens + 2));
    if (!sequences_[i].may_append) continue;
    demands.push_back({sequences_[i].id, tokens});
    told_.push_back(next_tokens(sequences_[i], static_cast<std::size_t>(tokens), n[1]));
  }
  for (std::size_t i = 0; i < demands.size(); ++i) {
    if ((n[3] + i) % 8 != 5) demands[i].tokens = told_[i];
  }
  return demands;
}

/// Grows sequences. One that the device did not take has changed nothing and works when called
/// again.
bool CacheSite::grow(const Numbers& n) {
  const std::vector<AppendDemand> demands = demands_of(n);
  if (demands.empty()) return false;
  const Urgency urgency = n[3] % 4 == 3 ? Urgency::admission : Urgency::growth;
  before_.look(cache_.manager(), cache_.tables());
  former_.look_at_standing(cache_.manager(), cache_.tables(), true);
  former_without_blocks_.look_at_standing(cache_.manager(), cache_.tables(), false);
  for (const AppendDemand& demand : demands) end_floor(salt_of(demand.sequence));
  const Registered registered_before = registered();
  auto batch = cache_.append(demands, urgency);
  bool has_failed = false;
  for (int i = 0; i < 2 && !batch && is_by_device(batch.status()); ++i) {
    has_failed = true;
    story_.tell(site_, "append fails: ", name_of(batch.status().code), ", and is called again");
    require_former("append", true);
    run_by_hand(cache_.stream());
    batch = cache_.append(demands, urgency);
  }
  if (batch) {
    judge_caps("append", registered_before);
    note_growth(demands, *batch);
  } else if (has_failed) {
    fail("append again", "an append that the device had not taken is refused the second time: " +
                             std::string(name_of(batch.status().code)));
  } else {
    require_unchanged("append", batch.status());
  }
  return static_cast<bool>(batch);
}

/// New tokens have words of their own, which are promised once every layer has been written.
void CacheSite::note_growth(std::span<const AppendDemand> demands, const StepBatch& batch) {
  has_appended_ = true;
  num_copies_ = batch.num_copies;
  appended_.look(cache_.manager(), cache_.tables());
  is_layer_written_.assign(static_cast<std::size_t>(options_.num_layers), false);
  for (std::size_t d = 0; d < demands.size(); ++d) {
    const AppendDemand& demand = demands[d];
    const auto sequence = std::find_if(sequences_.begin(), sequences_.end(),
                                       [&](const Sequence& s) { return s.id == demand.sequence; });
    growths_.push_back({sequence->id, sequence->words.size()});
    story_.tell(site_, "sequence ", sequence->name, " grows by ", demand.num_tokens,
                demand.num_tokens == 0 ? std::string()
                                       : ": words from " + std::to_string(families_.size()));
    for (const std::int32_t token : told_[d]) {
      add_word(*sequence, token);
      step_words_.push_back(sequence->words.back());
    }
    std::vector<std::int32_t>& coming = sequence->coming;
    coming.erase(coming.begin(),
                 coming.begin() + std::min(std::ssize(told_[d]), std::ssize(coming)));
    if (options_.has_prefix_cache) remember(*sequence);
  }
}

void CacheSite::append(const Numbers& n) {
  if (enter_step() && !has_appended_) static_cast<void>(grow(n));
}

/// Of the device's calls in an append one fails.
void CacheSite::append_with_failure(const Numbers& n) {
  if (!enter_step() || has_appended_) return;
  device_.faulty.fail_after(n[3] % 8);
  static_cast<void>(grow(n));
  device_.faulty.fail_after(kNoFailure);
}

/// Writes K and V of the step's new tokens for one layer. Tokens that the device did not take are
/// promised to nobody.
void CacheSite::write_layer(std::size_t layer) {
  if (step_words_.empty() || is_layer_written_[layer]) return;
  const auto number = static_cast<std::int32_t>(layer);
  const auto& key =
      buffers_.emplace_back(input_of(contents_of(step_words_), number, PlaneKind::key));
  const auto& value =
      buffers_.emplace_back(input_of(contents_of(step_words_), number, PlaneKind::value));
  const Status status = cache_.write_kv({.layer = number,
                                         .key = key.data(),
                                         .value = value.data(),
                                         .dtype = DType::f32,
                                         .scales = {}});
  if (!status) story_.tell(site_, "write_kv fails: ", name_of(status.code));
  is_layer_written_[layer] = static_cast<bool>(status);
  if (std::count(is_layer_written_.begin(), is_layer_written_.end(), false) > 0) return;
  for (const Word word : step_words_) is_written_[word] = true;
}

void CacheSite::write(const Numbers& n) {
  if (!is_in_step_ || !has_appended_ || step_words_.empty()) return;
  const std::size_t layer = n[0] % is_layer_written_.size();
  story_.tell(site_, "K and V of layer ", layer, " are written");
  write_layer(layer);
}

/// Attention of the step's tokens, which is refused where their K and V have not been written.
void CacheSite::attend(const Numbers& n) {
  if (!is_in_step_ || !has_appended_ || step_words_.empty()) return;
  const std::size_t layer = n[0] % is_layer_written_.size();
  const auto& q = buffers_.emplace_back(input_of(step_words_, 0, PlaneKind::key));
  auto& out = buffers_.emplace_back(q.size());
  const auto call = [&] {
    return cache_.attend({.layer = static_cast<std::int32_t>(layer),
                          .q = q.data(),
                          .q_dtype = DType::f32,
                          .out = out.data(),
                          .out_dtype = DType::f32,
                          .scales = {}});
  };
  if (!is_layer_written_[layer]) {
    return refused("attention of what nobody wrote", "attend without write_kv", call);
  }
  const Status status = call();
  story_.tell(site_, "attention of layer ", layer, status ? "" : " fails");
  if (status.code == StatusCode::failed_precondition) {
    fail("attend", "attention of a layer that has been written was refused");
  }
}

void CacheSite::step(const Numbers& n) {
  if (!enter_step()) return;
  if (has_appended_ || grow(n)) {
    for (std::size_t layer = 0; layer < is_layer_written_.size(); ++layer) write_layer(layer);
    return leave_step();
  }
  if (n[3] / 4 % 2 == 0) leave_step();  // or preempt and append again
}

void CacheSite::publish(const Numbers& /*n*/) {
  if (is_in_step_) return;
  const Status status = cache_.publish();
  story_.tell(site_, status ? "publishes"
                            : std::string("publish fails: ") + std::string(name_of(status.code)));
  find_retired();
}

}  // namespace kvarena::test
