#include "effects/tables_pool.hpp"

#include <algorithm>

// Sequences whose tokens others write, pins, and copies of the tables.

namespace kvarena::test {

/// Somebody else writes the tokens, behind all that the home stream was given. Until they are
/// published nobody may read the sequence.
void TablesPool::import_sequence(const Numbers& n) {
  const auto tokens = static_cast<std::int64_t>(n[0] % static_cast<std::uint32_t>(3 * block_size_));
  const auto urgency = n[1] % 2 == 0 ? Urgency::admission : Urgency::growth;
  const auto id =
      guarded("import_sequence", [&] { return tables_.import_sequence(tokens, {}, urgency); });
  if (!id) return;
  sequences_.push_back({.id = *id, .name = ++num_names_, .may_append = false, .is_import = true});
  Sequence& sequence = sequences_.back();
  sequence.words = new_words(tokens);
  story_.tell(pool_, "sequence ", sequence.name, " of ", tokens, " tokens is imported");
  memory_.write(kHome, slots_of(sequence), sequence.words);
  refused("import", "fork of an import", [&] { return tables_.fork(sequence.id, 0); });
  settle();  // which an append does, refused or not
  const AppendDemand demand{sequence.id, static_cast<std::int32_t>(n[2] % 2)};
  refused("import", "append to an import", [&] { return tables_.append(std::span(&demand, 1)); });
}

/// Its tokens are there, or will not come.
void TablesPool::end_import(const Numbers& n) {
  std::vector<Sequence*> imports;
  for (Sequence& sequence : sequences_) {
    if (sequence.is_import) imports.push_back(&sequence);
  }
  if (imports.empty()) return;
  Sequence& sequence = *imports[n[0] % imports.size()];
  if (n[1] % 4 == 3) {
    const Status status = guarded("fail_import", [&] { return tables_.fail_import(sequence.id); });
    if (status) story_.tell(pool_, "the import of sequence ", sequence.name, " fails");
    return;
  }
  const Status status =
      guarded("publish_import", [&] { return tables_.publish_import(sequence.id); });
  if (!status) return;
  sequence.is_import = false;
  sequence.may_append = true;
  story_.tell(pool_, "the import of sequence ", sequence.name, " is published");
  read_sequence(kHome, {"sequence", sequence.name}, sequence);
}

/// Holds some blocks of a sequence, with their content of now.
void TablesPool::pin(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  const std::int64_t length = std::ssize(sequence->words);
  const std::int64_t filled = (length + block_size_ - 1) / block_size_;
  PinOptions options{.purpose = "effects"};
  if (n[1] % 2 == 1) {
    options.first_block = n[1] / 2 % (filled + 1);
    options.num_blocks = n[2] % (filled - options.first_block + 1);
  }
  const auto holder = guarded("pin", [&] { return tables_.pin(sequence->id, options); });
  if (!holder) return;
  if (sequence->is_import) return fail("import", "an import was pinned before it was published");
  const std::int64_t end =
      options.num_blocks < 0 ? filled : options.first_block + options.num_blocks;
  const auto token = [&](std::int64_t block) {
    return sequence->words.begin() +
           static_cast<std::ptrdiff_t>(std::min<std::int64_t>(block * block_size_, length));
  };
  pins_.push_back({*holder, ++num_names_, {token(options.first_block), token(end)}});
  story_.tell(pool_, "pin ", num_names_, " holds ", end - options.first_block,
              " block(s) of sequence ", sequence->name, " from block ", options.first_block);
}

std::vector<std::int64_t> TablesPool::slots_of(const Pin& pin) {
  std::vector<BlockId> blocks((pin.words.size() + static_cast<std::size_t>(block_size_) - 1) /
                              static_cast<std::size_t>(block_size_));
  const auto count = tables_.blocks_of(pin.holder, blocks);
  if (!count || *count != std::ssize(blocks)) {
    fail("pin", "pin " + std::to_string(pin.name) + " does not have its blocks");
    return {};
  }
  std::vector<std::int64_t> slots;
  for (const BlockId block : blocks) {
    const std::vector<std::int64_t> its = slots_of(block);
    slots.insert(slots.end(), its.begin(), its.end());
  }
  slots.resize(pin.words.size());
  return slots;
}

void TablesPool::unpin(const Numbers& n) {
  if (pins_.empty()) return;
  const std::size_t index = n[0] % pins_.size();
  const Pin& pin = pins_[index];
  memory_.read(kHome, {"pin", pin.name}, slots_of(pin), pin.words);
  const Ticket ticket = ticket_for(std::nullopt, n[1]);
  const Status status = guarded("unpin", [&] { return tables_.unpin(pin.holder, ticket); });
  if (!status) return;
  story_.tell(pool_, "pin ", pin.name, " reads its blocks and ends, against ",
              name_of_ticket(ticket));
  pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(index));
}

/// A copied row leads to the sequence's tokens, and to nothing else.
void TablesPool::copy_row(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  std::vector<std::int32_t> row(sequence->words.size() + 1 + n[1] % 3, -7);
  std::int32_t length = -7;
  if (!tables_.copy_rows(std::span(&sequence->id, 1), row, std::ssize(row),
                         std::span(&length, 1))) {
    return fail("copied row", "a row with room for its blocks was not copied");
  }
  const std::vector<std::int64_t> slots = slots_of(*sequence);
  bool is_right = length == std::ssize(slots);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t first = i * static_cast<std::size_t>(block_size_);
    const std::int64_t expected = first < slots.size() ? slots[first] / block_size_ : -1;
    is_right = is_right && row[i] == expected;
  }
  if (!is_right) fail("copied row", "a copied row is not the table of its sequence");
}

}  // namespace kvarena::test
