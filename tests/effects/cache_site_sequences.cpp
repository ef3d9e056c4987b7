#include "effects/cache_site.hpp"

#include <algorithm>

namespace kvarena::test {

void CacheSite::create_sequence(const Numbers& n) {
  const std::int64_t longest =
      n[0] % 4 == 3 ? 1 + n[1] % static_cast<std::uint32_t>(3 * options_.block_size_tokens) : 0;
  const auto id = guarded("create_sequence",
                          [&] { return cache_.create_sequence({.max_length_tokens = longest}); });
  if (!id) return;
  const std::uint32_t name = ++num_names_;
  sequences_.push_back({.id = *id, .name = name, .family = name});
  story_.tell(site_, "sequence ", name, " is created");
}

void CacheSite::fork(const Numbers& n) {
  const Sequence* parent = pick(sequences_, n[0]);
  if (parent == nullptr) return;
  const std::size_t length =
      n[2] % 2 == 0 ? parent->words.size() : n[1] % (parent->words.size() + 1);
  const auto id =
      guarded("fork", [&] { return cache_.fork(parent->id, static_cast<std::int64_t>(length)); });
  if (!id) return;
  const std::uint32_t name = ++num_names_;
  story_.tell(site_, "sequence ", name, " is forked from ", parent->name, " at ", length);
  std::vector<Word> words(parent->words.begin(),
                          parent->words.begin() + static_cast<std::ptrdiff_t>(length));
  sequences_.push_back({.id = *id,
                        .name = name,
                        .family = parent->family,
                        .words = std::move(words),
                        .salt = parent->salt,
                        .keys = parent->keys});
}

void CacheSite::forget_sequence(std::size_t index) {
  sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(index));
}

void CacheSite::destroy(const Numbers& n) {
  if (sequences_.empty()) return;
  const std::size_t index = n[0] % sequences_.size();
  const Sequence& sequence = sequences_[index];
  const Ticket ticket = ticket_for(sequence.reader, n[1]);
  if (sequence.is_import) run_fillings();
  Floor floor = floor_of(sequence);
  const Status status = guarded("destroy", [&] { return cache_.destroy(sequence.id, ticket); });
  if (!status) return;
  floors_[sequence.salt] = std::move(floor);
  story_.tell(site_, "sequence ", sequence.name, " is destroyed, against ", name_of_ticket(ticket));
  forget_sequence(index);
}

void CacheSite::destroy_many(const Numbers& n) {
  if (sequences_.empty()) return;
  std::vector<std::size_t> chosen = several(n, sequences_.size());
  const Ticket ticket = ticket_for(sequences_[chosen.front()].reader, n[2]);
  std::erase_if(chosen, [&](std::size_t i) {  // those whose reader has another ticket
    const auto& reader = sequences_[i].reader;
    return reader && readers_[*reader].ticket != ticket;
  });
  std::vector<SequenceId> ids;
  for (const std::size_t i : chosen) {
    ids.push_back(sequences_[i].id);
    if (sequences_[i].is_import) run_fillings();
    end_floor(sequences_[i].salt);
  }
  const Status status = guarded("destroy_many", [&] { return cache_.destroy_many(ids, ticket); });
  if (!status) return;
  std::sort(chosen.rbegin(), chosen.rend());
  for (const std::size_t i : chosen) {
    story_.tell(site_, "sequence ", sequences_[i].name, " is destroyed with others, against ",
                name_of_ticket(ticket));
    forget_sequence(i);
  }
}

void CacheSite::truncate(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  const std::size_t length = sequence->words.size();
  const std::size_t cut =
      n[2] % 3 == 0 ? n[1] % (length + 1) : std::min<std::size_t>(n[1] % 4, length);
  const Ticket ticket = ticket_for(sequence->reader, n[3]);
  end_floor(sequence->salt);
  const Status status = guarded("truncate", [&] {
    return cache_.truncate(sequence->id, static_cast<std::int64_t>(length - cut), ticket);
  });
  if (!status) return;
  story_.tell(site_, "sequence ", sequence->name, " is truncated to ", length - cut, ", against ",
              name_of_ticket(ticket));
  sequence->words.resize(length - cut);
  if (cut > 0) sequence->coming.clear();
  if (cut > 0) sequence->may_append = true;
}

void CacheSite::reserve_capacity(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  const auto tokens = static_cast<std::int64_t>(sequence->words.size() + n[1] % 32);
  end_floor(sequence->salt);
  const Status status =
      guarded("reserve_capacity", [&] { return cache_.reserve_capacity(sequence->id, tokens); });
  if (status) story_.tell(site_, "sequence ", sequence->name, " reserves capacity for ", tokens);
}

void CacheSite::promise_capacity(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  const auto tokens = static_cast<std::int64_t>(sequence->words.size() + n[1] % 32);
  const Status status =
      guarded("promise_capacity", [&] { return cache_.promise_capacity(sequence->id, tokens); });
  if (status) story_.tell(site_, "sequence ", sequence->name, " is promised capacity for ", tokens);
}

}  // namespace kvarena::test
