// Sequences of an engine with tables of its own: how they begin, grow and end, and who reads them.

#include "effects/prefix_site.hpp"

#include <algorithm>

namespace kvarena::test {

/// Registers a holder and takes what is cached of a prompt.
void PrefixSite::create_sequence(const Numbers& n) {
  if (std::ssize(sequences_) >= options_.max_sequences) return;
  const Asked asked = prompt_of(n);
  const auto registered = manager_.register_holder({.purpose = "sequence"});
  if (!registered) return;  // readers read those of ended sequences
  const HolderId holder = *registered;
  Handles found;
  found.ids.resize((asked.tokens.size() - 1) / block_size_);
  found.generations.resize(found.ids.size());
  look();
  const auto adoption = pool_.adopt(holder, asked.query(), found.ids, found.generations);
  const bool waits = options_.duplicates == DuplicateRule::wait &&
                     adoption.status().code == StatusCode::failed_precondition &&
                     adoption.status().resource == Resource::content;
  if (!is_taken("adopt", adoption.status(), waits)) {
    static_cast<void>(manager_.unregister_holder(holder));
    return;
  }
  sequences_.push_back({.holder = holder, .name = ++num_names_});
  take_prefix(sequences_.back(), asked, *adoption, found);
}

/// What a sequence has been given must be what somebody wrote for it.
void PrefixSite::take_prefix(Sequence& sequence, const Asked& asked, const PrefixAdoption& adoption,
                             const Handles& found) {
  const auto blocks = static_cast<std::size_t>(adoption.found.blocks);
  const std::size_t covered = blocks * block_size_;
  if (adoption.found.tokens != static_cast<std::int64_t>(covered) ||
      covered >= asked.tokens.size()) {
    return fail("adoption", "no token is left to compute");
  }
  sequence.content = {asked.salt, {}, asked.keys};
  sequence.content.tokens.assign(asked.tokens.begin(),
                                 asked.tokens.begin() + adoption.found.tokens);
  sequence.coming.assign(asked.tokens.begin() + adoption.found.tokens, asked.tokens.end());
  sequence.position = adoption.end;
  sequence.own = blocks;
  for (std::size_t i = 0; i < blocks; ++i) {
    sequence.blocks.push_back({found.ids[i], found.generations[i],
                               words_of(sequence.content, i * block_size_, block_size_), true,
                               true});
  }
  story_.tell("sequence ", sequence.name, " of tenant ", asked.salt, " begins with ", covered,
              " of ", asked.tokens.size(), " tokens: ", name_of(adoption.found.stop));
  read_blocks(kHome, {"sequence", sequence.name}, sequence.blocks);
}

/// Whoever looks without taking may read what was found, until the home stream goes on.
void PrefixSite::match(const Numbers& n) {
  const Asked asked = prompt_of(n);
  Handles found;
  found.ids.resize(n[0] % 4 == 0 ? n[0] / 4 % 3 : asked.tokens.size());
  found.generations.resize(found.ids.size());
  look();
  const auto match = pool_.match(asked.query(), found.ids, found.generations);
  if (!is_taken("match", match.status(), false)) return;
  if (figures() != before_) fail("match", "match has changed something");
  const auto blocks = std::min(static_cast<std::size_t>(match->blocks), found.ids.size());
  story_.tell("of ", asked.tokens.size(), " tokens of tenant ", asked.salt, " ", match->tokens,
              " are found: ", name_of(match->stop));
  for (std::size_t i = 0; i < blocks; ++i) {
    if (manager_.generation(found.ids[i]) != found.generations[i]) {
      return fail("match", "a block was found that is another by now");
    }
    memory_.read(kHome, {"match", 0}, slots_of(found.ids[i]),
                 words_of(asked, i * block_size_, block_size_));
  }
}

/// All blocks of a sequence, once they are written.
void PrefixSite::fork(const Numbers& n) {
  const Sequence* parent = pick(sequences_, n[0]);
  if (parent == nullptr || std::ssize(sequences_) >= options_.max_sequences) return;
  if (!std::ranges::all_of(parent->blocks, &Filled::is_written)) return;
  Sequence child = *parent;
  child.name = ++num_names_;
  child.reader.reset();
  const auto holder = manager_.register_holder({.purpose = "sequence"});
  if (!holder) return;
  child.holder = *holder;
  const Handles handles = handles_of(child, 0, child.blocks.size());
  look();
  if (!is_taken("retain", manager_.retain(child.holder, handles.ids, handles.generations), false)) {
    return;
  }
  story_.tell("sequence ", parent->name, " is forked into ", child.name);
  sequences_.push_back(std::move(child));
}

/// Gives up the blocks from `first` on, against the ticket of whoever reads them.
void PrefixSite::release(Sequence& sequence, std::size_t first, std::uint32_t number) {
  const Handles handles = handles_of(sequence, first, sequence.blocks.size() - first);
  sequence.blocks.resize(first);
  const bool is_read = sequence.reader && readers_[*sequence.reader].is_open;
  const Status released =
      is_read ? manager_.release_after(readers_[*sequence.reader].ticket, sequence.holder,
                                       handles.ids, handles.generations)
              : manager_.release(sequence.holder, handles.ids, handles.generations);
  if (!released) fail("accounts", "a reference cannot be released");
  tell(handles.ids, number);
}

void PrefixSite::destroy(const Numbers& n) {
  if (sequences_.empty()) return;
  const std::size_t index = n[0] % sequences_.size();
  story_.tell("sequence ", sequences_[index].name, " is destroyed");
  remember(sequences_[index].content);
  release(sequences_[index], 0, n[1]);
  const HolderId holder = sequences_[index].holder;
  sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(index));
  leaving_.push_back(holder);
  end_holders();
}

/// A holder ends when its last reader has read.
void PrefixSite::end_holders() {
  std::erase_if(leaving_, [this](HolderId holder) {
    return static_cast<bool>(manager_.unregister_holder(holder));
  });
}

void PrefixSite::cut(Sequence& sequence, std::size_t blocks, std::uint32_t number) {
  release(sequence, blocks, number);
  sequence.content.tokens.resize(blocks * block_size_);
  sequence.own = std::min(sequence.own, blocks);
  sequence.coming.clear();
  if (static_cast<std::size_t>(sequence.position.blocks) > blocks) begin_anew(sequence);
}

void PrefixSite::truncate(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr || sequence->blocks.empty()) return;
  remember(sequence->content);
  cut(*sequence, n[1] % sequence->blocks.size(), n[2]);
  story_.tell("sequence ", sequence->name, " is truncated to ", sequence->blocks.size(),
              " block(s)");
}

/// Allocates blocks for the next tokens: of the prompt, then any.
void PrefixSite::grow(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  Handles handles;
  handles.ids.resize(1 + n[1] % 3);
  handles.generations.resize(handles.ids.size());
  const auto taken = manager_.allocate(sequence->holder, handles.ids, handles.generations);
  if (!taken) return story_.tell("allocate is refused: ", name_of(taken.status().code));
  tell(n[2] % 3 == 0 ? manager_.evicted() : std::span<const BlockId>(handles.ids), n[2]);
  add_blocks(*sequence, handles, n[3]);
  story_.tell("sequence ", sequence->name, " grows by ", handles.ids.size(), " block(s), ", *taken,
              " evicted");
}

void PrefixSite::add_blocks(Sequence& sequence, const Handles& handles, std::uint32_t number) {
  Tokens& tokens = sequence.content.tokens;
  const std::size_t before = tokens.size();
  for (std::size_t i = 0; i < handles.ids.size() * block_size_; ++i) {
    const bool is_coming = i < sequence.coming.size();
    tokens.push_back(is_coming ? sequence.coming[i]
                               : static_cast<std::int32_t>((number >> i % 8) % 2));
  }
  const auto used = std::min(sequence.coming.size(), tokens.size() - before);
  sequence.coming.erase(sequence.coming.begin(),
                        sequence.coming.begin() + static_cast<std::ptrdiff_t>(used));
  for (std::size_t i = 0; i < handles.ids.size(); ++i) {
    sequence.blocks.push_back({handles.ids[i], handles.generations[i],
                               words_of(sequence.content, before + i * block_size_, block_size_),
                               false, false});
  }
  remember(sequence.content);
}

void PrefixSite::check_sequence(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  read_blocks(kHome, {"sequence", sequence->name}, sequence->blocks);
}

/// What a sequence holds, has registered itself and published is found by whoever asks for it.
void PrefixSite::check_found(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  std::size_t promised = 0;
  while (promised < sequence->own && sequence->blocks[promised].is_published) ++promised;
  if (promised == 0) return;
  Asked asked = sequence->content;
  asked.tokens.resize(promised * block_size_);
  asked.tokens.push_back(0);
  const auto match = pool_.match(asked.query());
  if (match && match->blocks >= static_cast<std::int64_t>(promised)) return;
  fail("published", "sequence " + std::to_string(sequence->name) + " holds " +
                        std::to_string(promised) + " published block(s) of which " +
                        std::to_string(match ? match->blocks : -1) + " are found");
}

/// Work on the other stream reads what is written of a sequence by now.
void PrefixSite::open_reader(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr || (sequence->reader && readers_[*sequence->reader].is_open)) return;
  const auto ticket = manager_.open_ticket();
  if (!ticket) return;
  memory_.wait(kOther, kHome);
  read_blocks(kOther, {"reader", sequence->name}, sequence->blocks);
  sequence->reader = readers_.size();
  readers_.push_back({*ticket, memory_.position(kOther), true});
  story_.tell("a reader of sequence ", sequence->name, " opens");
}

void PrefixSite::retire(const Numbers& n) {
  Reader* reader = pick(readers_, n[0]);
  if (reader == nullptr || !reader->is_open) return;
  memory_.run_until(kOther, reader->end);
  reader->is_open = false;
  if (!manager_.retire(reader->ticket)) fail("accounts", "a ticket cannot be retired");
  end_holders();
  story_.tell("a reader has read; its ticket retires");
}

}  // namespace kvarena::test
