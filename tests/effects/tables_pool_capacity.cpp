#include "effects/tables_pool.hpp"

#include <algorithm>

// Capacity that was reserved or promised, and appends that are taken back.

namespace kvarena::test {

void TablesPool::reserve_capacity(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  const auto tokens = static_cast<std::int64_t>(sequence->words.size() + n[1] % 32);
  const Status status = guarded("reserve_capacity", [&] {
    return tables_.reserve_capacity(sequence->id, tokens,
                                    n[2] % 2 == 0 ? Urgency::admission : Urgency::growth);
  });
  if (status) story_.tell(pool_, "sequence ", sequence->name, " reserves capacity for ", tokens);
}

void TablesPool::promise_capacity(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  const auto tokens = static_cast<std::int64_t>(sequence->words.size() + n[1] % 32);
  const Status status =
      guarded("promise_capacity", [&] { return tables_.promise_capacity(sequence->id, tokens); });
  if (!status) return;
  story_.tell(pool_, "sequence ", sequence->name, " is promised capacity for ", tokens);
  sequence->promised_blocks = (tokens + block_size_ - 1) / block_size_;
  for (Growth& growth : last_append_) {
    if (growth.name == sequence->name) growth.promised_blocks = kForgotten;
  }
}

TablesPool::Sequence* TablesPool::find(SequenceId id) {
  const auto found = std::find_if(sequences_.begin(), sequences_.end(),
                                  [&](const Sequence& sequence) { return sequence.id == id; });
  return found == sequences_.end() ? nullptr : &*found;
}

/// Whether somebody else was promised bytes of the block into which the next token goes.
bool TablesPool::is_last_block_shared(const Sequence& sequence) const {
  const auto length = std::ssize(sequence.words);
  if (length % block_size_ == 0) return false;
  const auto block = tables_.lookup(sequence.id, length / block_size_);
  return !block || manager_.claims(*block) > 1;
}

/// What an append that comes next would take back. A copy on write takes one of the blocks
/// promised.
void TablesPool::note_growth(std::span<const AppendDemand> demands) {
  last_append_.clear();
  for (const AppendDemand& demand : demands) {
    const Sequence& sequence = *find(demand.sequence);
    const bool copies = demand.num_tokens > 0 && is_last_block_shared(sequence);
    last_append_.push_back(
        {sequence.name, sequence.words.size(), sequence.promised_blocks - (copies ? 1 : 0)});
  }
}

/// A cut released blocks: they are no longer promised, those not yet taken are.
void TablesPool::lower_promise(Sequence& sequence, std::int64_t former_blocks) {
  const std::int64_t not_taken =
      std::max<std::int64_t>(0, sequence.promised_blocks - former_blocks);
  sequence.promised_blocks =
      std::min(sequence.promised_blocks, tables_.info(sequence.id).value().num_blocks + not_taken);
}

/// Growth within a promise does not want for blocks, unless a copy needs one.
void TablesPool::judge_refusal(std::span<const AppendDemand> demands, const Status& status) {
  if (status.code != StatusCode::exhausted || status.resource != Resource::block) return;
  const std::int64_t failed = tables_.failed_demand();
  if (failed < 0 || failed >= std::ssize(demands)) {
    return fail("failed demand", "an refused append names no demand");
  }
  const AppendDemand& demand = demands[static_cast<std::size_t>(failed)];
  const Sequence& sequence = *find(demand.sequence);
  const std::int64_t promised = sequence.promised_blocks * block_size_;
  if (std::ssize(sequence.words) + demand.num_tokens > promised) return;
  if (is_last_block_shared(sequence)) return;
  fail("promised capacity", "sequence " + std::to_string(sequence.name) + " of " +
                                std::to_string(sequence.words.size()) + " tokens was promised " +
                                std::to_string(promised) + " and could not grow by " +
                                std::to_string(demand.num_tokens));
}

/// A step that fails before its tokens are written, whether its copies have been made or not.
void TablesPool::append_and_undo(const Numbers& n) {
  if (sequences_.empty() || !can_undo_) return;
  const std::vector<AppendDemand> demands = demands_of(n);
  if (demands.empty()) return;
  settle();
  note_growth(demands);
  const std::vector<Growth> growths = std::move(last_append_);
  last_append_.clear();
  const auto result = guarded("append", [&] { return tables_.append(demands); });
  if (!result) return judge_refusal(demands, result.status());
  const bool copies_are_made = n[3] % 2 == 1;
  if (copies_are_made) {  // and use what was promised
    for (const BlockCopy& blocks : result->copies) memory_.copy(kHome, blocks);
    for (std::size_t i = 0; i < demands.size(); ++i) {
      find(demands[i].sequence)->promised_blocks = growths[i].promised_blocks;
    }
  }
  const Status status =
      guarded("undo_append", [&] { return tables_.undo_append(copies_are_made); });
  story_.tell(pool_, "an append of ", demands.size(), " sequence(s) from ",
              several(n, sequences_.size()).front(), copies_are_made ? " makes its copies and" : "",
              status ? " is taken back" : " stays");
  if (!status) fail("undo", "an append could not be taken back");
}

/// Takes back the last append, whose copies and tokens the home stream writes all the same.
void TablesPool::undo_append(const Numbers& /*n*/) {
  for (const Growth& growth : last_append_) {
    for (const Sequence& sequence : sequences_) {
      if (sequence.name == growth.name && sequence.reader) return;  // only its ticket may cut it
    }
  }
  forget_promises_others_use();
  const Status status = guarded("undo_append", [&] { return tables_.undo_append(true); });
  if (!status) return;
  if (last_append_.empty()) return fail("undo", "an append was taken back that was not there");
  cut_to_former_lengths();
}

/// A block that others have claimed since the append stays with them: it cannot be promised again.
void TablesPool::forget_promises_others_use() {
  for (Growth& growth : last_append_) {
    for (const Sequence& sequence : sequences_) {
      if (sequence.name != growth.name) continue;
      const std::int64_t num_blocks = tables_.info(sequence.id).value().num_blocks;
      for (std::int64_t i = static_cast<std::int64_t>(growth.length) / block_size_; i < num_blocks;
           ++i) {
        const BlockId block = tables_.lookup(sequence.id, i).value();
        if (manager_.claims(block) > 1) growth.promised_blocks = kForgotten;
      }
    }
  }
}

void TablesPool::cut_to_former_lengths() {
  for (const Growth& growth : last_append_) {
    for (Sequence& sequence : sequences_) {
      if (sequence.name != growth.name) continue;
      if (sequence.promised_blocks != growth.promised_blocks) sequence.promised_blocks = 0;
      if (sequence.words.size() <= growth.length) continue;
      story_.tell(pool_, "sequence ", sequence.name, " is taken back to ", growth.length);
      sequence.words.resize(growth.length);
    }
  }
  last_append_.clear();
}

void TablesPool::settle_append(const Numbers& /*n*/) { settle(); }

/// The last append stays.
void TablesPool::settle() {
  tables_.settle_append();
  last_append_.clear();
}

}  // namespace kvarena::test
