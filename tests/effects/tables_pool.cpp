#include "effects/tables_pool.hpp"

namespace kvarena::test {

TablesPool::TablesPool(const TablesPoolOptions& options, Story& story)
    : pool_("pool " + std::to_string(options.name) + ": "),
      story_(story),
      manager_(BlockManager::create({.num_blocks = options.num_blocks,
                                     .watermark_blocks = options.watermark_blocks,
                                     .max_holders = options.max_sequences + 2,
                                     .max_open_tickets = options.max_open_tickets,
                                     .max_fence_entries = options.max_fence_entries})
                   .value()),
      tables_(BlockTables::create(manager_, {.block_size_tokens = options.block_size_tokens,
                                             .max_sequences = options.max_sequences,
                                             .max_append_tokens = 1024,
                                             .can_undo = options.can_undo})
                  .value()),
      memory_(options.num_blocks, options.block_size_tokens, options.num_streams, options.bug),
      block_size_(options.block_size_tokens),
      can_undo_(options.can_undo) {
  for (int i = 0; i < 2; ++i) {
    outsiders_.push_back(manager_.register_holder({.purpose = "outsider"}).value());
  }
  story_.tell(pool_, options.num_blocks, " blocks of ", options.block_size_tokens, " tokens, ",
              options.max_sequences, " sequences, ", options.max_open_tickets,
              " tickets, fence entries ", options.max_fence_entries, " (0: as blocks), watermark ",
              options.watermark_blocks);
}

void TablesPool::fail(const char* kind, std::string text) {
  if (!failure_) failure_ = Failure{kind, pool_ + text};
}

void TablesPool::require_unchanged(const char* name, const Status& status) {
  story_.tell(pool_, name, " is refused: ", name_of(status.code), " ", name_of(status.resource));
  after_.look(manager_, tables_);
  if (before_ == after_) return;
  fail("refused call", std::string(name) + " was refused and changed something");
}

std::vector<Word> TablesPool::new_words(std::int64_t count) {
  std::vector<Word> words(static_cast<std::size_t>(count));
  for (Word& word : words) word = ++last_word_;
  return words;
}

std::vector<std::int64_t> TablesPool::slots_of(const Sequence& sequence) {
  std::vector<std::int64_t> slots;
  const auto info = tables_.info(sequence.id);
  if (!info || info->length_tokens != std::ssize(sequence.words)) {
    fail("length", "sequence " + std::to_string(sequence.name) + " has " +
                       (info ? std::to_string(info->length_tokens) : std::string("no")) +
                       " tokens instead of " + std::to_string(sequence.words.size()));
    return slots;
  }
  slots.reserve(sequence.words.size());
  for (std::int64_t i = 0; i < info->length_tokens; ++i) {
    const auto slot = tables_.slot_of(sequence.id, i);
    if (!slot) {
      fail("length", "sequence " + std::to_string(sequence.name) + " has no slot for token " +
                         std::to_string(i));
      return {};
    }
    slots.push_back(*slot);
  }
  return slots;
}

std::vector<std::int64_t> TablesPool::slots_of(BlockId block) const {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(block_size_));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i] = std::int64_t{block.value} * block_size_ + static_cast<std::int64_t>(i);
  }
  return slots;
}

void TablesPool::read_sequence(std::size_t stream, Party party, const Sequence& sequence) {
  const std::vector<std::int64_t> slots = slots_of(sequence);
  if (!slots.empty()) memory_.read(stream, party, slots, sequence.words);
}

Ticket TablesPool::ticket_for(const std::optional<std::size_t>& reader,
                              std::uint32_t number) const {
  if (reader) return readers_[*reader].ticket;
  std::vector<Ticket> choices{kNoTicket, kNoTicket};
  for (const Reader& open : readers_) {
    if (open.is_open) choices.push_back(open.ticket);
  }
  return choices[number % choices.size()];
}

/// A ticket as stories name it: its number means nothing to a reader.
std::string TablesPool::name_of_ticket(Ticket ticket) const {
  for (const Reader& reader : readers_) {
    if (reader.ticket == ticket) return "the ticket of reader " + std::to_string(reader.name);
  }
  return "no ticket";
}

void TablesPool::run_stream(const Numbers& n) {
  const std::size_t stream = n[0] % memory_.num_streams();
  const std::uint32_t wanted = 1 + n[1];
  std::uint32_t count = 0;
  while (count < wanted && memory_.run_one(stream)) ++count;
  if (count > 0) story_.tell(pool_, "stream ", stream, " runs ", count, " operation(s)");
}

void TablesPool::finish() {
  for (const Sequence& sequence : sequences_) {
    read_sequence(kHome, {"sequence", sequence.name}, sequence);
  }
  for (const Holding& holding : holdings_) {
    memory_.read(kHome, {"outsider", holding.name}, slots_of(holding.id), holding.words);
  }
  for (const Pin& pin : pins_) {
    memory_.read(kHome, {"pin", pin.name}, slots_of(pin), pin.words);
  }
  while (!publications_.empty()) revive_block({0, 0, 0, 0});
  story_.tell(pool_, "the home stream runs to its end; all readers read");
  memory_.run_until(kHome, memory_.position(kHome));
  for (Reader& reader : readers_) {
    if (reader.is_open) finish_reader(reader);
  }
  if (!failure()) check_whole();
}

void TablesPool::check_whole() {
  std::vector<SequenceId> ids;
  for (const Sequence& sequence : sequences_) ids.push_back(sequence.id);
  bool is_given_back = static_cast<bool>(tables_.destroy_many(ids));
  for (const Pin& pin : pins_) is_given_back &= static_cast<bool>(tables_.unpin(pin.holder));
  for (const Holding& holding : holdings_) {
    is_given_back &= static_cast<bool>(manager_.release(holding.holder, std::span(&holding.id, 1),
                                                        std::span(&holding.generation, 1)));
  }
  for (std::int32_t i = 0; i < manager_.num_blocks(); ++i) {
    const BlockId id(i);
    if (manager_.state(id) == BlockState::evictable) {
      is_given_back &= static_cast<bool>(mark_published(id, manager_.generation(id), false));
    }
    static_cast<void>(manager_.restore(id));  // refused for blocks that are in service
  }
  const BlockStats stats = manager_.stats();
  if (!is_given_back || stats.free != stats.num_blocks || stats.references != 0 ||
      stats.fence_entries != 0 || tables_.stats().entries != 0) {
    fail("accounts", "after everything was given back " + std::to_string(stats.free) + " of " +
                         std::to_string(stats.num_blocks) + " blocks are free");
  }
  if (!manager_.check_invariants() || !tables_.check_invariants()) {
    fail("accounts", "check_invariants found an invariant violated");
  }
}

}  // namespace kvarena::test
