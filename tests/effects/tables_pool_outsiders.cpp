#include "effects/tables_pool.hpp"

#include <algorithm>

namespace kvarena::test {

/// A full block of a sequence; nullptr when the sequence that the numbers name has none.
TablesPool::Sequence* TablesPool::find_full(const Numbers& n, BlockId* id, Generation* generation,
                                            std::vector<Word>* words) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return nullptr;
  const std::size_t size = static_cast<std::size_t>(block_size_);
  const std::size_t num_full = sequence->words.size() / size;
  if (num_full == 0) return nullptr;
  const std::size_t index = n[1] % num_full;
  const auto found = tables_.lookup(sequence->id, static_cast<std::int64_t>(index));
  if (!found) {
    fail("length", "a full block of a sequence is not in its table");
    return nullptr;
  }
  *id = *found;
  *generation = manager_.generation(*found);
  const auto first = sequence->words.begin() + static_cast<std::ptrdiff_t>(index * size);
  words->assign(first, first + block_size_);
  return sequence;
}

void TablesPool::hold_block(const Numbers& n) {
  Holding holding;
  const Sequence* sequence = find_full(n, &holding.id, &holding.generation, &holding.words);
  if (sequence == nullptr || holdings_.size() >= 16) return;
  holding.holder = outsiders_[n[2] % outsiders_.size()];
  const Status status = guarded("retain", [&] {
    return manager_.retain(holding.holder, std::span(&holding.id, 1),
                           std::span(&holding.generation, 1));
  });
  if (!status) return fail("handle", "a block of a living sequence could not be retained");
  holding.name = ++num_names_;
  story_.tell(pool_, "outsider ", holding.name, " retains block ", holding.id.value,
              " of sequence ", sequence->name);
  holdings_.push_back(std::move(holding));
}

void TablesPool::allocate_blocks(const Numbers& n) {
  if (holdings_.size() >= 16) return;
  const HolderId holder = outsiders_[n[1] % outsiders_.size()];
  std::array<BlockId, 4> ids;
  std::array<Generation, 4> generations;
  const std::size_t count = 1 + n[0] % ids.size();
  const auto urgency = n[2] % 2 == 0 ? Urgency::admission : Urgency::growth;
  const auto evicted = guarded("allocate", [&] {
    if (n[3] % 2 == 0) {
      return manager_.allocate(holder, std::span(ids).first(count),
                               std::span(generations).first(count), urgency);
    }
    const HolderDemand demand{holder, static_cast<std::uint32_t>(count)};
    return manager_.allocate_each(std::span(&demand, 1), std::span(ids).first(count),
                                  std::span(generations).first(count), urgency);
  });
  if (!evicted) return;
  for (std::size_t i = 0; i < count; ++i) {
    Holding holding{.id = ids[i],
                    .generation = generations[i],
                    .name = ++num_names_,
                    .holder = holder,
                    .words = new_words(block_size_),
                    .reader = {}};
    story_.tell(pool_, "outsider ", holding.name, " takes block ", ids[i].value,
                " and writes words from ", holding.words.front());
    memory_.write(kHome, slots_of(holding.id), holding.words);
    holdings_.push_back(std::move(holding));
  }
}

void TablesPool::release_block(const Numbers& n) {
  if (holdings_.empty()) return;
  const std::size_t index = n[0] % holdings_.size();
  const Holding& holding = holdings_[index];
  const Ticket ticket = ticket_for(holding.reader, n[1]);
  const std::span ids(&holding.id, 1);
  const std::span generations(&holding.generation, 1);
  memory_.read(kHome, {"outsider", holding.name}, slots_of(holding.id), holding.words);
  const Status status = guarded("release", [&] {
    return ticket == kNoTicket ? manager_.release(holding.holder, ids, generations)
                               : manager_.release_after(ticket, holding.holder, ids, generations);
  });
  story_.tell(pool_, "outsider ", holding.name, " reads block ", holding.id.value, " and ",
              status ? "releases it" : "cannot release it", ", against ", name_of_ticket(ticket));
  if (!status) {
    if (ticket == kNoTicket) fail("handle", "a held block could not be released");
    return;
  }
  holdings_.erase(holdings_.begin() + static_cast<std::ptrdiff_t>(index));
}

Status TablesPool::mark_published(BlockId id, Generation generation, bool is_published) {
  return manager_.set_content(id, generation,
                              is_published ? BlockContent::published : BlockContent::unwritten);
}

void TablesPool::publish_block(const Numbers& n) {
  Publication publication;
  const Sequence* sequence =
      find_full(n, &publication.id, &publication.generation, &publication.words);
  if (sequence == nullptr) return;
  const Status status = guarded(
      "publish", [&] { return mark_published(publication.id, publication.generation, true); });
  if (!status) return fail("handle", "a block of a living sequence could not be published");
  publication.name = ++num_names_;
  story_.tell(pool_, "block ", publication.id.value, " of sequence ", sequence->name,
              " is published as ", publication.name);
  publications_.push_back(std::move(publication));
}

void TablesPool::unpublish_block(const Numbers& n) {
  const Publication* chosen = pick(publications_, n[0]);
  if (chosen == nullptr) return;
  const BlockId id = chosen->id;
  const Generation generation = chosen->generation;
  story_.tell(pool_, "publication ", chosen->name, " of block ", id.value, " is taken back");
  // Refused when the block has been taken for something else meanwhile.
  static_cast<void>(guarded("publish", [&] { return mark_published(id, generation, false); }));
  std::erase_if(publications_,
                [&](const Publication& p) { return p.id == id && p.generation == generation; });
}

void TablesPool::revive_block(const Numbers& n) {
  if (publications_.empty()) return;
  const std::size_t index = n[0] % publications_.size();
  const Publication& publication = publications_[index];
  const HolderId holder = outsiders_[n[1] % outsiders_.size()];
  const std::span ids(&publication.id, 1);
  const std::span generations(&publication.generation, 1);
  const Status status =
      guarded("retain", [&] { return manager_.retain(holder, ids, generations); });
  story_.tell(pool_, "publication ", publication.name, ": block ", publication.id.value,
              status ? " is revived and read" : " cannot be revived");
  if (status) {
    memory_.read(kHome, {"cached block", publication.name}, slots_of(publication.id),
                 publication.words);
    if (n[2] % 2 == 0 || holdings_.size() >= 16) {
      static_cast<void>(manager_.release(holder, ids, generations));
    } else {
      holdings_.push_back(
          {publication.id, publication.generation, ++num_names_, holder, publication.words, {}});
      story_.tell(pool_, "outsider ", num_names_, " keeps it");
    }
  }
  if (n[3] % 4 == 0 || status.code == StatusCode::stale_handle) {
    publications_.erase(publications_.begin() + static_cast<std::ptrdiff_t>(index));
  }
}

void TablesPool::quarantine(const Numbers& n) {
  const BlockId id(static_cast<std::int32_t>(
      n[0] % static_cast<std::uint32_t>(memory_.num_slots() / block_size_)));
  const auto is_offline = guarded("quarantine", [&] { return manager_.quarantine(id); });
  if (is_offline) story_.tell(pool_, "block ", id.value, " is quarantined");
}

void TablesPool::restore(const Numbers& n) {
  const BlockId id(static_cast<std::int32_t>(
      n[0] % static_cast<std::uint32_t>(memory_.num_slots() / block_size_)));
  const Status status = guarded("restore", [&] { return manager_.restore(id); });
  if (status) story_.tell(pool_, "block ", id.value, " is restored");
}

std::optional<std::size_t> TablesPool::new_reader(std::uint32_t stream_number) {
  const auto ticket = guarded("open_ticket", [&] { return manager_.open_ticket(); });
  if (!ticket) return std::nullopt;
  const std::size_t stream = 1 + stream_number % (memory_.num_streams() - 1);
  readers_.push_back({*ticket, static_cast<std::uint32_t>(readers_.size()), stream, 0});
  story_.tell(pool_, "a ticket is opened for reader ", readers_.back().name, " on stream ", stream);
  return readers_.size() - 1;
}

void TablesPool::open_ticket(const Numbers& n) { static_cast<void>(new_reader(n[0])); }

/// Work on another stream that reads sequences and outsiders' blocks, once what they hold now has
/// been written.
void TablesPool::open_reader(const Numbers& n) {
  if (sequences_.empty()) return;
  const auto index = new_reader(n[2]);
  if (!index) return;
  Reader& reader = readers_[*index];
  memory_.wait(reader.stream, kHome);
  for (const std::size_t i : several(n, sequences_.size())) {
    Sequence& sequence = sequences_[i];
    if (sequence.reader || sequence.is_import) continue;
    story_.tell(pool_, "reader ", reader.name, " reads sequence ", sequence.name);
    read_sequence(reader.stream, {"reader", reader.name}, sequence);
    sequence.reader = *index;
    sequence.may_append = false;
  }
  Holding* holding = n[3] % 2 == 1 ? pick(holdings_, n[3] / 2) : nullptr;
  if (holding != nullptr && !holding->reader) {
    story_.tell(pool_, "reader ", reader.name, " reads outsider ", holding->name);
    memory_.read(reader.stream, {"reader", reader.name}, slots_of(holding->id), holding->words);
    holding->reader = *index;
  }
  reader.position = memory_.position(reader.stream);
}

void TablesPool::retire(const Numbers& n) {
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    if (readers_[i].is_open) open.push_back(i);
  }
  if (open.empty()) return;
  if (n[1] % 2 == 1) {
    story_.tell(pool_, "the home stream runs to its end");
    memory_.run_until(kHome, memory_.position(kHome));
  }
  finish_reader(readers_[open[n[0] % open.size()]]);
}

/// The reader's work comes to its end, then its ticket retires.
void TablesPool::finish_reader(Reader& reader) {
  story_.tell(pool_, "reader ", reader.name, " has read all, its ticket retires");
  memory_.run_until(reader.stream, reader.position);
  const Status status = guarded("retire", [&] { return manager_.retire(reader.ticket); });
  if (!status)
    fail("ticket",
         "the open ticket of reader " + std::to_string(reader.name) + " could not retire");
  reader.is_open = false;
  const std::size_t index = static_cast<std::size_t>(&reader - readers_.data());
  for (Sequence& sequence : sequences_) {
    if (sequence.reader != index) continue;
    sequence.reader.reset();
    sequence.may_append = true;
  }
  for (Holding& holding : holdings_) {
    if (holding.reader == index) holding.reader.reset();
  }
}

}  // namespace kvarena::test
