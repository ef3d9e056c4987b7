// What blocks hold: how they are written, registered, published, taken back and overwritten, and
// the blocks of others.

#include "effects/prefix_site.hpp"

#include <algorithm>

namespace kvarena::test {

void PrefixSite::begin_anew(Sequence& sequence) {
  sequence.position = pool_.begin(sequence.content.salt);
}

/// Blocks have been unregistered that others may hold: nobody is promised that they are found.
void PrefixSite::withdraw_promises() {
  for (Sequence& sequence : sequences_) sequence.own = 0;
}

/// Writes some blocks: in the order of the home stream, or by a transfer that is waited for there,
/// or by one that is complete.
void PrefixSite::write(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  std::size_t most = 1 + n[1] % 4;
  const std::size_t stream = n[2] % 3 == 0 ? kHome : kOther;
  if (stream == kOther) memory_.wait(kOther, kHome);  // for whoever had the blocks before
  for (Filled& block : sequence->blocks) {
    if (block.is_written || most == 0) continue;
    memory_.write(stream, slots_of(block.id), block.words);
    block.is_written = true;
    --most;
  }
  if (n[2] % 3 == 1) memory_.wait(kHome, kOther);
  if (n[2] % 3 == 2) memory_.run_until(kOther, memory_.position(kOther));
  story_.tell("sequence ", sequence->name, " writes its blocks",
              stream == kOther ? " by a transfer" : "");
}

/// Registers the next blocks, written or not. Behind a block that has gone it begins anew.
void PrefixSite::register_blocks(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  const auto first = static_cast<std::size_t>(sequence->position.blocks);
  const std::size_t left = sequence->blocks.size() - first;
  const std::size_t count = n[1] % 4 == 3 ? n[1] / 4 % (left + 1) : left;
  if (count == 0) return;
  const Handles handles = handles_of(*sequence, first, count);
  const auto tokens = std::span<const std::int32_t>(sequence->content.tokens)
                          .subspan(first * block_size_, count * block_size_);
  const auto registered = pool_.register_blocks(sequence->position, tokens, handles.ids,
                                                handles.generations, sequence->content.keys);
  if (!registered) {
    const Status refused = registered.status();
    story_.tell("register_blocks is refused: ", name_of(refused.code));
    const bool is_promised = sequence->own >= first;
    if (refused.code != StatusCode::stale_handle || refused.resource != Resource::block ||
        is_promised || first == 0) {
      return fail("refusal", "register_blocks of sequence " + std::to_string(sequence->name) +
                                 " was refused: " + std::string(name_of(refused.code)));
    }
    return begin_anew(*sequence);
  }
  story_.tell("sequence ", sequence->name, " registers ", *registered, " of ", count,
              " block(s) behind ", first);
  for (std::size_t i = std::max(first, sequence->own); i < first + count; ++i) {
    sequence->blocks[i].is_published = false;
  }
  if (sequence->own == first && *registered == static_cast<std::int64_t>(count)) {
    sequence->own += count;
  }
}

/// Publishes written blocks, all or the first few.
void PrefixSite::publish(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  std::size_t most = n[1] % 4 == 3 ? n[1] / 4 % 3 : sequence->blocks.size();
  Handles handles;
  for (Filled& block : sequence->blocks) {
    if (!block.is_written || most == 0) continue;
    handles.ids.push_back(block.id);
    handles.generations.push_back(block.generation);
    block.is_published = true;
    --most;
  }
  const auto published = pool_.publish(handles.ids, handles.generations);
  if (!published) return fail("refusal", "publish was refused");
  if (*published > 0) {
    story_.tell("sequence ", sequence->name, " publishes ", *published, " block(s)");
  }
}

/// Whether nobody else has the block, or reads it.
bool PrefixSite::may_rewrite(const Sequence& sequence, std::size_t block) const {
  const bool is_read = sequence.reader && readers_[*sequence.reader].is_open;
  return !is_read && manager_.reference_count(sequence.blocks[block].id) == 1;
}

/// Cuts a sequence in a block and gives that block other tokens, after it has been forgotten, or
/// after its content has been taken back from the manager alone.
void PrefixSite::rewrite(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr || sequence->blocks.empty()) return;
  const std::size_t number = n[1] % sequence->blocks.size();
  if (!may_rewrite(*sequence, number)) return;
  Filled block = sequence->blocks[number];
  const bool is_forgotten = n[2] % 2 == 0;
  cut(*sequence, number + 1, n[3]);
  sequence->own = std::min(sequence->own, number);
  const Status taken_back =
      is_forgotten ? pool_.forget(std::span(&block.id, 1))
                   : manager_.set_content(block.id, block.generation, BlockContent::unwritten);
  if (!taken_back) return fail("refusal", "a block cannot be taken back");
  if (!is_forgotten) tell(std::span(&block.id, 1), n[3]);
  if (manager_.claims(block.id) != 1) return;
  sequence->content.tokens.resize(number * block_size_);
  sequence->blocks.pop_back();
  add_blocks(*sequence, {{block.id}, {block.generation}}, n[3]);
  if (static_cast<std::size_t>(sequence->position.blocks) > number) begin_anew(*sequence);
  story_.tell("sequence ", sequence->name, " gives block ", number, " of its own other tokens, ",
              is_forgotten ? "forgotten" : "taken back");
}

/// What should fill a block does not come: the sequence goes on without it, or tries again.
void PrefixSite::fail_write(const Numbers& n) {
  Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  const auto found = std::ranges::find(sequence->blocks, false, &Filled::is_written);
  if (found == sequence->blocks.end()) return;
  const auto number = static_cast<std::size_t>(found - sequence->blocks.begin());
  if (!may_rewrite(*sequence, number)) return;
  const Filled block = *found;
  sequence->own = std::min(sequence->own, number);
  if (n[1] % 2 == 0) {
    if (!pool_.forget(std::span(&block.id, 1))) return fail("refusal", "forget was refused");
    if (static_cast<std::size_t>(sequence->position.blocks) > number) begin_anew(*sequence);
  } else {
    if (!manager_.set_content(block.id, block.generation, BlockContent::failed)) {
      return fail("refusal", "a write cannot fail");
    }
    cut(*sequence, number, n[2]);
  }
  story_.tell("the write of block ", number, " of sequence ", sequence->name, " fails");
}

/// Of one sequence, whoever else has its blocks.
void PrefixSite::forget(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr || sequence->blocks.empty()) return;
  const std::size_t first = n[1] % sequence->blocks.size();
  const Handles handles = handles_of(*sequence, first, sequence->blocks.size() - first);
  if (!pool_.forget(handles.ids)) fail("refusal", "forget was refused");
  withdraw_promises();
  story_.tell("blocks of sequence ", sequence->name, " are forgotten");
}

void PrefixSite::forget_many(const Numbers& n) {
  if (n[0] % 4 == 0) pool_.forget_all();
  if (n[0] % 4 != 0) pool_.forget_salt(n[1] % 2);
  withdraw_promises();
  story_.tell(n[0] % 4 == 0 ? "all blocks are forgotten" : "the blocks of a tenant are forgotten");
}

/// To look again changes nothing for anybody.
void PrefixSite::notice(const Numbers& n) {
  std::vector<BlockId> ids;
  for (std::uint32_t i = 0; i < 1 + n[1] % 8; ++i) {
    ids.emplace_back(static_cast<std::int32_t>((n[0] + i) % manager_.num_blocks()));
  }
  pool_.notice(ids);
}

/// An outsider takes blocks and writes into them what no token means.
void PrefixSite::hold_others(const Numbers& n) {
  Handles taken;
  taken.ids.resize(1 + n[1] % 6);
  taken.generations.resize(taken.ids.size());
  if (!manager_.allocate(outsider_, taken.ids, taken.generations)) return;
  tell(n[2] % 2 == 0 ? manager_.evicted() : std::span<const BlockId>(taken.ids), n[2]);
  for (const BlockId id : taken.ids) {
    std::vector<Word> words(block_size_);
    for (Word& word : words) word = ++last_word_;
    memory_.write(kHome, slots_of(id), words);
  }
  others_.ids.insert(others_.ids.end(), taken.ids.begin(), taken.ids.end());
  others_.generations.insert(others_.generations.end(), taken.generations.begin(),
                             taken.generations.end());
  story_.tell("an outsider takes ", taken.ids.size(), " block(s) and writes there");
}

void PrefixSite::release_others(const Numbers& n) {
  if (others_.ids.empty()) return;
  if (!manager_.release(outsider_, others_.ids, others_.generations)) {
    fail("accounts", "an outsider's reference cannot be released");
  }
  tell(others_.ids, n[0]);
  others_ = {};
  story_.tell("the outsider releases its blocks");
}

/// Calls that must be refused and change nothing. What has gone is noticed before.
void PrefixSite::misuse(const Numbers& n) {
  std::vector<BlockId> all;
  for (std::int32_t i = 0; i < manager_.num_blocks(); ++i) all.emplace_back(i);
  pool_.notice(all);
  look();
  const std::array<BlockId, 2> twice = {all[n[1] % all.size()], all[n[1] % all.size()]};
  const BlockId id = twice[0];
  const Generation now = manager_.generation(id);
  const std::array<Generation, 2> both = {now, now};
  const Tokens tokens(2 * block_size_, 7);  // no sequence has these
  const auto of_one = std::span(tokens).first(block_size_);
  PrefixPosition position = pool_.begin(0);
  PrefixPosition nowhere;
  const Generation stale(now.value + 1);
  const std::span<const BlockId> one(&id, 1);
  switch (n[0] % 6) {
    case 0:
      return expect_refused("publish by a stale handle",
                            pool_.publish(one, std::span(&stale, 1)).status(),
                            StatusCode::stale_handle, Resource::block);
    case 1:
      return expect_refused(
          "register_blocks behind no position",
          pool_.register_blocks(nowhere, of_one, one, std::span(&now, 1)).status(),
          StatusCode::not_found, Resource::sequence);
    case 2:
      return expect_refused(
          "register_blocks of half a block",
          pool_.register_blocks(position, tokens, one, std::span(&now, 1)).status(),
          StatusCode::invalid_argument, Resource::num_tokens);
    case 3: {
      const bool is_held = manager_.reference_count(id) != 0;
      if (is_held) return;
      return expect_refused(
          "register_blocks of a block that nobody holds",
          pool_.register_blocks(position, of_one, one, std::span(&now, 1)).status(),
          StatusCode::failed_precondition, Resource::block);
    }
    case 4:
      if (manager_.reference_count(id) == 0 || manager_.content(id) != BlockContent::unwritten) {
        return;
      }
      return expect_refused("register_blocks of a block twice",
                            pool_.register_blocks(position, tokens, twice, both).status(),
                            StatusCode::duplicate_argument, Resource::block);
    default: {
      const BlockId beyond(static_cast<std::int32_t>(manager_.num_blocks()));
      return expect_refused("forget of a block that is none", pool_.forget(std::span(&beyond, 1)),
                            StatusCode::not_found, Resource::block);
    }
  }
}

}  // namespace kvarena::test
