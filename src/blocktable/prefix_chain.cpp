// What sequences do with the cache: tell tokens, fork, cut, forget, end.

#include "blocktable/prefix_cache.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace kvarena {

void PrefixCache::begin(std::uint32_t slot, std::uint64_t salt,
                        std::span<const ExtraKey> keys) noexcept {
  PrefixChain& c = chains_[slot];
  accounts_.count_sequence(c.account - 1, -1);  // a fork begins twice
  c = {};
  c.salt = salt;
  c.account = accounts_.find(salt) + 1;
  accounts_.count_sequence(c.account - 1, 1);
  c.root = hash_.root_of(salt);
  c.salt_tag = c.root.high;
  c.num_keys = static_cast<std::int32_t>(keys.size());
  std::copy(keys.begin(), keys.end(), keys_.data() + slot * max_keys_);
}

/// Goes through the extra keys of these blocks again.
void PrefixCache::rewind(std::uint32_t slot, std::int32_t blocks, const PrefixLink& last) noexcept {
  PrefixChain& c = chains_[slot];
  c.root = hash_.root_of(c.salt);
  const std::span<const ExtraKey> keys = keys_of(slot);
  const std::int64_t end = std::int64_t{blocks} * static_cast<std::int64_t>(block_size_);
  std::size_t key = 0;
  while (key < keys.size() && keys[key].first_token < end) {
    const std::int64_t block = keys[key].first_token / static_cast<std::int64_t>(block_size_);
    const auto its = keys_in_block(keys, key, block);
    c.root = hash_.root_with(c.root, its);
    key += its.size();
  }
  c.next_key = static_cast<std::int32_t>(key);
  c.chain = blocks == 0 ? Hash128{} : index_.block(last.block()).hash ^ c.root;
  c.last = last;
  c.blocks = blocks;
  c.published = std::min(c.published, blocks);
  c.known = static_cast<std::int32_t>(end);
}

/// Unregisters what the sequence has written and not published, last first.
void PrefixCache::abort_written(const Owner& owner) noexcept {
  const PrefixChain& c = chains_[owner.slot];
  for (std::int32_t i = c.blocks; i-- > c.published;) {
    const BlockId id = owner.table.id_at(std::as_const(owner.pages), i);
    if (is_written_by(owner.slot, id)) remove(id, PrefixRemoval::aborted);
  }
}

/// The sequence can be told its tokens anew, from the first one on.
void PrefixCache::reset(const Owner& owner) noexcept {
  abort_written(owner);
  rewind(owner.slot, 0, {});
  chains_[owner.slot].has_equals = false;
}

/// What was registered behind a block that is gone has gone with it.
bool PrefixCache::holds_together(const Owner& owner) noexcept {
  if (index_.is_current(chains_[owner.slot].last)) return true;
  ++stats_.broken_chains;
  reset(owner);
  return false;
}

/// Whole blocks are added from where they are; other tokens go to the tail first. Blocks that are
/// added together are on one leaf of the table.
void PrefixCache::add_tokens(const Owner& owner, std::span<const std::int32_t> tokens) noexcept {
  PrefixChain& c = chains_[owner.slot];
  while (!tokens.empty()) {
    const std::size_t in_tail = num_in_tail(c);
    if (in_tail == 0 && tokens.size() >= block_size_) {
      const auto on_leaf =
          static_cast<std::size_t>(BlockTables::kPageEntries - (c.blocks & kPageMask));
      const std::size_t blocks = std::min(tokens.size() / block_size_, on_leaf);
      Run run = run_of(owner, tokens.data(), blocks);
      if (!add_blocks(owner, run)) return;
      tokens = tokens.subspan(blocks * block_size_);
      continue;
    }
    const std::size_t count = std::min(block_size_ - in_tail, tokens.size());
    std::copy_n(tokens.data(), count, tail(owner.slot) + in_tail);
    tokens = tokens.subspan(count);
    if (in_tail + count < block_size_) {
      c.known += static_cast<std::int32_t>(count);
      continue;
    }
    Run run = run_of(owner, tail(owner.slot), 1);
    if (!add_blocks(owner, run)) return;
  }
}

PrefixCache::Run PrefixCache::run_of(const Owner& owner, const std::int32_t* tokens,
                                     std::size_t blocks) const noexcept {
  const std::int32_t first = chains_[owner.slot].blocks;
  return {&owner.table.id_at(owner.pages, first), &owner.table.generation_at(owner.pages, first),
          tokens, blocks};
}

/// Adds blocks of one leaf whose tokens are all known. Returns false when the chain ends before
/// their end.
bool PrefixCache::add_blocks(const Owner& owner, Run& run) noexcept {
  if (!holds_together(owner)) return false;
  PrefixChain& c = chains_[owner.slot];
  for (std::size_t i = 0; i < run.count; ++i) {
    i += add_usual(owner.slot, run, i);
    if (i == run.count) break;
    look_ahead(run, i, c);
    const bool is_added =
        add_block(owner, {run.ids[i], run.generations[i]}, run.tokens + i * block_size_, run_[i]);
    c.known = c.blocks * static_cast<std::int32_t>(block_size_);
    if (!is_added) return false;
  }
  return true;
}

Hash128 PrefixCache::hash_filled(const Owner& owner, std::int32_t token) noexcept {
  const PrefixChain& c = chains_[owner.slot];
  tail(owner.slot)[block_size_ - 1] = token;
  Hash128 chain;
  hash_.extend(c.chain, tail(owner.slot), block_size_, std::span(&chain, 1));
  prefetch_own(owner.table.id_at(std::as_const(owner.pages), c.blocks), chain ^ c.root);
  return chain;
}

void PrefixCache::add_filled(const Owner& owner, const Hash128& chain) noexcept {
  Run run = run_of(owner, tail(owner.slot), 1);
  run_[0] = chain;
  run.ready = 1;
  static_cast<void>(add_blocks(owner, run));
}

/// Hashes the blocks of a run up to kAhead blocks behind block `i`, and has the cache fetch what is
/// read and written for them. A block is hashed while others are registered: each hash needs the
/// one before, and leaves the processor time.
inline void PrefixCache::look_ahead(Run& run, std::size_t i, const PrefixChain& c) noexcept {
  constexpr std::size_t kAhead = 8;
  const std::size_t end = std::min(run.count, i + kAhead);
  if (run.ready >= end) return;
  hash_.extend(run.ready == 0 ? c.chain : run_[run.ready - 1], run.tokens + run.ready * block_size_,
               block_size_, std::span(run_.data() + run.ready, end - run.ready));
  for (; run.ready < end; ++run.ready) prefetch_own(run.ids[run.ready], run_[run.ready] ^ c.root);
}

/// Adds the blocks from `first` on that are as usual: blank, not registered, and behind a block
/// that no other follows, so that nothing is looked up. Returns how many.
std::size_t PrefixCache::add_usual(std::uint32_t slot, Run& run, std::size_t first) noexcept {
  PrefixChain& c = chains_[slot];
  const auto end = static_cast<std::int64_t>(
      (static_cast<std::size_t>(c.blocks) + run.count - first) * block_size_);
  const bool has_keys = c.next_key < c.num_keys &&
                        keys_of(slot)[static_cast<std::size_t>(c.next_key)].first_token < end;
  if (has_keys || !index_.is_last(c.last) || fault_ != PrefixFault::none) return 0;
  const std::uint64_t fact = RegistrationFact(c.salt_tag, c.root).packed();
  PrefixContent content{run.tokens + first * block_size_, {}, c.last, c.salt};
  const std::int32_t account = account_of(slot);
  std::size_t i = first;
  for (; i < run.count; ++i) {
    look_ahead(run, i, c);
    const BlockId id = run.ids[i];
    if (index_.block(id).is_registered() || accounts_.is_full(account) ||
        !contents_.is_blank(id, run.generations[i]))
      break;
    contents_.begin_writing_blank(id);
    ++stats_.registrations;
    index_.insert_last(id, run.generations[i], run_[i] ^ c.root, content, slot, now());
    if (std::uint32_t* birth = birth_of(id); birth != nullptr) *birth = now();
    registered_.add(run_[i].high, fact);
    accounts_.enter(id, account);
    content.tokens += block_size_;
    content.parent = index_.link_to(id);
  }
  if (i == first) return 0;
  c.chain = run_[i - 1];
  c.last = content.parent;
  c.blocks += static_cast<std::int32_t>(i - first);
  c.known = c.blocks * static_cast<std::int32_t>(block_size_);
  return i - first;
}

/// Adds a block with this chain at its end. Returns false when it cannot be registered. Nothing is
/// looked up behind a block that no registered block follows.
bool PrefixCache::add_block(const Owner& owner, const Entry& own, const std::int32_t* tokens,
                            const Hash128& chain) noexcept {
  PrefixChain& c = chains_[owner.slot];
  const std::span<const ExtraKey> its =
      c.num_keys == 0
          ? std::span<const ExtraKey>{}
          : keys_in_block(keys_of(owner.slot), static_cast<std::size_t>(c.next_key), c.blocks);
  const Hash128 root = its.empty() ? c.root : hash_.root_with(c.root, its);
  const PrefixContent content{tokens, its, c.last, c.salt};
  BlockId block = index_.is_last(c.last) ? kNoBlock : index_.find(chain ^ root, content);
  if (block != kNoBlock && !is_alive(block)) {
    remove(block, PrefixRemoval::lost);
    block = kNoBlock;
  }
  if (block == kNoBlock) {
    if (!register_block(owner.slot, own, chain ^ root, content)) {
      ++stats_.broken_chains;
      return false;
    }
    registered_.add(chain.high, RegistrationFact(c.salt_tag, root).packed());
    block = own.id;
  } else if (block != own.id) {
    ++stats_.duplicates;
    c.has_equals = true;
  }
  c.chain = chain;
  c.root = root;
  c.next_key += static_cast<std::int32_t>(its.size());
  c.last = index_.link_to(block);
  ++c.blocks;
  return true;
}

/// Registers the next block of a sequence, unless others have set its content.
bool PrefixCache::register_block(std::uint32_t slot, const Entry& own, const Hash128& hash,
                                 const PrefixContent& content) noexcept {
  const std::int32_t account = account_of(slot);
  if (index_.block(own.id).is_registered()) {
    const bool is_current = index_.block(own.id).generation == own.generation;
    if (is_current && salt_of(own.id) != content.salt) return false;  // the block of another tenant
    remove(own.id, PrefixRemoval::lost);
  }
  if (accounts_.is_full(account)) keep_cap(account);
  if (!index_.is_current(content.parent)) return false;
  if (!contents_.begin_writing(own.id, own.generation)) return false;
  enter(own.id, own.generation, hash, content, slot);
  accounts_.enter(own.id, account);
  if (fault_ == PrefixFault::publishes_at_registration) publish_block(own.id, content.salt);
  return true;
}

void PrefixCache::keep_tail(std::uint32_t slot, BlockId block, std::int64_t count) noexcept {
  std::copy_n(index_.tokens_of(block), count, tail(slot));
  chains_[slot].known += static_cast<std::int32_t>(count);
}

/// A chain whose blocks are gone ends now, so that the tokens before the doubt can be told anew.
void PrefixCache::distrust(const Owner& owner, std::int64_t length) noexcept {
  if (length >= owner.sequence.length) return;
  untell(owner, length);
  static_cast<void>(holds_together(owner));
  PrefixChain& c = chains_[owner.slot];
  c.doubt = std::min(c.doubt, static_cast<std::int32_t>(length));
}

/// Goes back from the end of the chain, so that nothing of its own depends on what is removed.
void PrefixCache::untell(const Owner& owner, std::int64_t length, bool unpublishes) noexcept {
  PrefixChain& c = chains_[owner.slot];
  if (c.known <= length) return;
  const auto size = static_cast<std::int64_t>(block_size_);
  const auto keep = static_cast<std::int32_t>(length / size);
  if (keep >= c.blocks) {
    c.known = static_cast<std::int32_t>(length);
    return;
  }
  if (!holds_together(owner)) return;
  if (keep < c.published) give_up(owner);
  const std::int64_t in_tail = length % size;
  PrefixLink at = c.last;
  for (std::int32_t i = c.blocks - 1; i >= keep; --i) {
    const BlockId block = at.block();
    at = index_.parent_of(block);
    if (i == keep) std::copy_n(index_.tokens_of(block), in_tail, tail(owner.slot));
    const bool is_own = owner.table.id_at(std::as_const(owner.pages), i) == block;
    const bool was_its_work = unpublishes && index_.block(block).writer() == owner.slot;
    if (is_own && (was_its_work || is_written_by(owner.slot, block))) {
      remove(block, PrefixRemoval::aborted);
    }
  }
  rewind(owner.slot, keep, at);
  c.known = static_cast<std::int32_t>(length);
}

/// It gives up first: what is not published ends the chain.
void PrefixCache::end(const Owner& owner) noexcept {
  give_up(owner);
  abort_written(owner);
  accounts_.count_sequence(account_of(owner.slot), -1);
  chains_[owner.slot] = {};
}

/// A fork knows what its parent has published, and the tokens behind that as far as they lie in one
/// block.
void PrefixCache::fork(const Owner& parent, const Owner& child) noexcept {
  begin(child.slot, chains_[parent.slot].salt, keys_of(parent.slot));
  const std::int32_t doubt = chains_[parent.slot].doubt;
  if (doubt < child.sequence.length) chains_[child.slot].doubt = doubt;
  if (!holds_together(parent)) return;
  const PrefixChain& p = chains_[parent.slot];
  const auto size = static_cast<std::int64_t>(block_size_);
  const std::int64_t length = child.sequence.length;
  const auto keep = static_cast<std::int32_t>(std::min<std::int64_t>(p.published, length / size));
  PrefixLink at = p.last;
  BlockId behind = kNoBlock;
  for (std::int32_t i = p.blocks; i > keep; --i) {
    behind = at.block();
    at = index_.parent_of(at.block());
  }
  rewind(child.slot, keep, at);
  PrefixChain& c = chains_[child.slot];
  c.published = keep;
  const std::int64_t in_tail = std::min(length, std::int64_t{p.known}) - c.known;
  if (in_tail >= size) return;
  if (behind != kNoBlock) return keep_tail(child.slot, behind, in_tail);
  std::copy_n(tail(parent.slot), in_tail, tail(child.slot));
  c.known += static_cast<std::int32_t>(in_tail);
}

/// Everything behind the first block goes with it.
void PrefixCache::forget(const Owner& owner) noexcept {
  PrefixChain& c = chains_[owner.slot];
  if (c.blocks == 0 || !holds_together(owner)) return;
  BlockId first = c.last.block();
  while (!index_.is_first(first)) first = index_.parent_of(first).block();
  remove(first, PrefixRemoval::forgotten);
  reset(owner);
}

}  // namespace kvarena
