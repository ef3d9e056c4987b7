#include "effects/tables_pool.hpp"

#include <algorithm>

namespace kvarena::test {

void TablesPool::create_sequence(const Numbers& n) {
  const std::int64_t longest =
      n[0] % 4 == 3 ? 1 + n[1] % static_cast<std::uint32_t>(3 * block_size_) : 0;
  const auto id = guarded("create_sequence",
                          [&] { return tables_.create_sequence({.max_length_tokens = longest}); });
  if (!id) return;
  sequences_.push_back({.id = *id, .name = ++num_names_, .words = {}, .reader = {}});
  story_.tell(pool_, "sequence ", num_names_, " is created");
}

void TablesPool::fork(const Numbers& n) {
  const Sequence* parent = pick(sequences_, n[0]);
  if (parent == nullptr) return;
  const std::size_t length =
      n[2] % 2 == 0 ? parent->words.size() : n[1] % (parent->words.size() + 1);
  const auto id =
      guarded("fork", [&] { return tables_.fork(parent->id, static_cast<std::int64_t>(length)); });
  if (!id) return;
  story_.tell(pool_, "sequence ", num_names_ + 1, " is forked from ", parent->name, " at ", length);
  std::vector<Word> words(parent->words.begin(),
                          parent->words.begin() + static_cast<std::ptrdiff_t>(length));
  sequences_.push_back({.id = *id, .name = ++num_names_, .words = std::move(words), .reader = {}});
}

void TablesPool::forget_sequence(std::size_t index) {
  sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(index));
}

void TablesPool::destroy(const Numbers& n) {
  if (sequences_.empty()) return;
  const std::size_t index = n[0] % sequences_.size();
  const Sequence& sequence = sequences_[index];
  const Ticket ticket = ticket_for(sequence.reader, n[1]);
  const Status status = guarded("destroy", [&] { return tables_.destroy(sequence.id, ticket); });
  if (!status) return;
  story_.tell(pool_, "sequence ", sequence.name, " is destroyed, against ", name_of_ticket(ticket));
  forget_sequence(index);
}

void TablesPool::destroy_many(const Numbers& n) {
  if (sequences_.empty()) return;
  std::vector<std::size_t> chosen = several(n, sequences_.size());
  const std::optional<std::size_t> reader = sequences_[chosen.front()].reader;
  const Ticket ticket = ticket_for(reader, n[2]);
  std::erase_if(chosen, [&](std::size_t i) {  // those whose reader has another ticket
    const auto& other = sequences_[i].reader;
    return other && readers_[*other].ticket != ticket;
  });
  std::vector<SequenceId> ids;
  for (const std::size_t i : chosen) ids.push_back(sequences_[i].id);
  const Status status = guarded("destroy_many", [&] { return tables_.destroy_many(ids, ticket); });
  if (!status) return;
  std::sort(chosen.rbegin(), chosen.rend());
  for (const std::size_t i : chosen) {
    story_.tell(pool_, "sequence ", sequences_[i].name, " is destroyed with others, against ",
                name_of_ticket(ticket));
    forget_sequence(i);
  }
}

void TablesPool::truncate(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  const std::size_t length = sequence->words.size();
  // Mostly the last few tokens, as a rejected draft.
  const std::size_t cut =
      n[2] % 3 == 0 ? n[1] % (length + 1) : std::min<std::size_t>(n[1] % 4, length);
  const Ticket ticket = ticket_for(sequence->reader, n[3]);
  const std::int64_t num_blocks = tables_.info(sequence->id).value().num_blocks;
  const Status status = guarded("truncate", [&] {
    return tables_.truncate(sequence->id, static_cast<std::int64_t>(length - cut), ticket);
  });
  if (!status) return;
  story_.tell(pool_, "sequence ", sequence->name, " is truncated to ", length - cut, ", against ",
              name_of_ticket(ticket));
  sequence->words.resize(length - cut);
  lower_promise(*sequence, num_blocks);
  if (cut > 0) sequence->may_append = true;
}

std::vector<AppendDemand> TablesPool::demands_of(const Numbers& n) const {
  std::vector<AppendDemand> demands;
  for (const std::size_t i : several(n, sequences_.size())) {
    const auto tokens = static_cast<std::int32_t>((n[2] * (demands.size() + 1)) %
                                                  static_cast<std::uint32_t>(2 * block_size_ + 2));
    if (sequences_[i].may_append) demands.push_back({sequences_[i].id, tokens});
  }
  return demands;
}

void TablesPool::append(const Numbers& n) {
  if (!sequences_.empty()) try_append(demands_of(n), n[3] % 4 == 3, n[3] % 2 == 1);
}

void TablesPool::append_one_each(const Numbers& n) {
  std::vector<AppendDemand> demands;
  for (const Sequence& sequence : sequences_) {
    if (sequence.may_append) demands.push_back({sequence.id, 1});
  }
  try_append(demands, false, n[0] % 2 == 1);
}

void TablesPool::try_append(std::span<const AppendDemand> demands, bool is_admission,
                            bool reversed) {
  if (demands.empty()) return;
  settle();
  note_growth(demands);
  const auto result = guarded("append", [&] {
    return tables_.append(demands, is_admission ? Urgency::admission : Urgency::growth);
  });
  if (result) return carry_out(*result, demands, reversed);
  last_append_.clear();
  judge_refusal(demands, result.status());
}

void TablesPool::carry_out(const AppendResult& result, std::span<const AppendDemand> demands,
                           bool reversed) {
  std::vector<BlockCopy> copies(result.copies.begin(), result.copies.end());
  if (reversed) std::reverse(copies.begin(), copies.end());  // their order is not defined
  for (const BlockCopy& blocks : copies) memory_.copy(kHome, blocks);
  const std::vector<Word> words = new_words(std::ssize(result.slots));
  std::size_t next = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const AppendDemand& demand = demands[i];
    Sequence* sequence = find(demand.sequence);
    sequence->promised_blocks = last_append_[i].promised_blocks;
    const auto count = static_cast<std::size_t>(demand.num_tokens);
    if (next + count > words.size()) return fail("slots", "append gave too few slots");
    sequence->words.insert(sequence->words.end(), words.begin() + static_cast<std::ptrdiff_t>(next),
                           words.begin() + static_cast<std::ptrdiff_t>(next + count));
    story_.tell(pool_, "sequence ", sequence->name, " grows by ", count, " to ",
                sequence->words.size(), count == 0 ? "" : ": words from ",
                count == 0 ? std::string()
                           : std::to_string(words[next]) + " in slots from " +
                                 std::to_string(result.slots[next]));
    next += count;
  }
  for (const BlockCopy& blocks : copies) {
    story_.tell(pool_, "  copies block ", blocks.source.value, " to ", blocks.target.value);
  }
  if (next != words.size()) return fail("slots", "append gave too many slots");
  memory_.write(kHome, result.slots, words);
}

void TablesPool::check_sequence(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  story_.tell(pool_, "sequence ", sequence->name, " reads its tokens on the home stream");
  read_sequence(kHome, {"sequence", sequence->name}, *sequence);
}

}  // namespace kvarena::test
