// The search for the longest published prefix, and the reasons why it ends.

#include "blocktable/prefix_cache.hpp"

#include <algorithm>
#include <array>

namespace kvarena {

std::span<const ExtraKey> PrefixCache::keys_in_block(std::span<const ExtraKey> keys,
                                                     std::size_t first,
                                                     std::int64_t block) const noexcept {
  const std::int64_t end = (block + 1) * static_cast<std::int64_t>(block_size_);
  if (first == keys.size()) return {};
  std::size_t last = first;
  while (last < keys.size() && keys[last].first_token < end) ++last;
  return keys.subspan(first, last - first);
}

/// Hashes the next blocks of a query, of which `most` are looked for, and has the cache fetch
/// where.
void PrefixCache::hash_batch(const PrefixQuery& query, std::int64_t most, Hashed& at,
                             PrefixHashRing& ring) const noexcept {
  const auto size = static_cast<std::int64_t>(block_size_);
  const std::size_t place = PrefixHashRing::place(at.blocks);
  const auto room = static_cast<std::int64_t>(PrefixHashRing::kSize - place);
  const std::int64_t count =
      std::min({most - at.blocks, static_cast<std::int64_t>(PrefixHash::kBatch), room});
  if (count <= 0) return;
  const std::span<Hash128> chains =
      std::span(ring.chains).subspan(place, static_cast<std::size_t>(count));
  hash_.extend(at.chain, query.tokens.data() + at.blocks * size, block_size_, chains);
  at.chain = chains.back();
  for (const Hash128& chain : chains) {
    const auto its = keys_in_block(query.extra_keys, at.next_key, at.blocks);
    if (!its.empty()) at.root = hash_.root_with(at.root, its);
    at.next_key += its.size();
    ring.roots[PrefixHashRing::place(at.blocks++)] = at.root;
    index_.prefetch_table(chain ^ at.root);
  }
}

/// Has the cache fetch what the search reads of the blocks that it expects next.
void PrefixCache::prefetch_ahead(const BlockStride& stride) const noexcept {
  constexpr std::int64_t kAhead = 8;
  if (!stride.is_even()) return;
  for (std::int64_t count = stride.has_changed() ? 1 : kAhead; count <= kAhead; ++count) {
    const std::int64_t number = stride.ahead(count);
    if (static_cast<std::uint64_t>(number) >= static_cast<std::uint64_t>(index_.num_blocks()))
      return;
    const BlockId id(static_cast<std::int32_t>(number));
    index_.prefetch_found(id);
    contents_.prefetch(id);
  }
}

/// Finds block `i` of a query by its hash. `hashed` is at least there. Up to `most`, blocks are
/// hashed a batch before they are looked for, so that what the search reads arrives in the
/// meantime.
BlockId PrefixCache::find_hashed(const PrefixQuery& query, const PrefixContent& content,
                                 std::int64_t i, std::int64_t most, Hashed& hashed,
                                 PrefixHashRing& ring) const noexcept {
  constexpr auto kBatch = static_cast<std::int64_t>(PrefixHash::kBatch);
  constexpr std::int64_t kAhead = 8;
  while (hashed.blocks < most && hashed.blocks - i <= kBatch) hash_batch(query, most, hashed, ring);
  if (i + kAhead < hashed.blocks) {
    const BlockId ahead = index_.prefetch_block(ring.hash(i + kAhead));
    if (ahead != kNoBlock) contents_.prefetch(ahead);
    const BlockId nearer = index_.prefetch_candidate(ring.hash(i + kAhead / 2));
    if (nearer != kNoBlock) contents_.prefetch(nearer);
  }
  return index_.find(ring.hash(i), content);
}

/// Goes from block to block, in front of block `end`, as long as each is the newest behind the one
/// before: then no hash is needed. Requires that no extra keys begin in front of `end`.
void PrefixCache::walk(Search& at, std::int64_t end) const noexcept {
  const std::span<BlockId> ids = at.ids;
  PrefixContent content{
      at.tokens + at.blocks * static_cast<std::int64_t>(block_size_), {}, at.last, 0};
  BlockStride stride = at.stride;
  std::int64_t i = at.blocks;
  std::int64_t evictable = 0;
  for (; i < end && stride.is_even(); ++i) {
    const BlockId id = index_.find_newest(content);
    if (id == kNoBlock) break;
    const PrefixBlock& block = index_.block(id);
    if (!block.is_published() || !contents_.can_be_found(id, block.generation)) break;
    if (!contents_.is_held(id)) ++evictable;
    ids[static_cast<std::size_t>(i)] = id;
    at.generations[static_cast<std::size_t>(i)] = block.generation;
    content.parent = {id, block.registrations};
    content.tokens += block_size_;
    stride.note(id);
    prefetch_ahead(stride);
  }
  at.blocks = i;
  at.last = content.parent;
  at.stride = stride;
  at.evictable += evictable;
}

/// Moves behind a block that has been found by its hash.
void PrefixCache::pass(Search& at, BlockId id, std::span<const ExtraKey> keys) const noexcept {
  if (!contents_.is_held(id)) ++at.evictable;
  at.ids[static_cast<std::size_t>(at.blocks)] = id;
  at.generations[static_cast<std::size_t>(at.blocks)] = index_.block(id).generation;
  if (!keys.empty()) at.root = hash_.root_with(at.root, keys);
  at.next_key += keys.size();
  at.last = index_.link_to(id);
  at.stride.note(id);
  prefetch_ahead(at.stride);
  ++at.blocks;
}

/// A walk finds most blocks. Hashes find the first block, each block that is not the newest behind
/// the one before it, and all blocks where they do not lie at equal distances.
PrefixMatch PrefixCache::match(const PrefixQuery& query, std::span<BlockId> ids,
                               std::span<Generation> generations,
                               std::int64_t& evictable) const noexcept {
  const auto size = static_cast<std::int64_t>(block_size_);
  const std::int64_t full = std::ssize(query.tokens) / size;
  const bool is_capped = full > 0 && std::ssize(query.tokens) % size == 0;
  const std::int64_t most = std::min(is_capped ? full - 1 : full, std::ssize(ids));
  PrefixMatch match{.stop = is_capped ? PrefixStop::capped : PrefixStop::less_than_a_block};
  Search at(query.tokens.data(), ids, generations, hash_.root_of(query.salt));
  Hashed hashed;  // the blocks of the ring
  PrefixHashRing ring;
  while (true) {
    if (at.blocks > 0 && at.stride.is_even()) {
      const bool has_keys = at.next_key < query.extra_keys.size();
      walk(at, has_keys ? std::min(most, query.extra_keys[at.next_key].first_token / size) : most);
    }
    if (at.blocks >= most) break;
    const std::int64_t i = at.blocks;
    const auto keys = keys_in_block(query.extra_keys, at.next_key, i);
    if (hashed.blocks <= i) {
      hashed = {i, i == 0 ? Hash128{} : index_.block(at.last.block()).hash ^ at.root, at.root,
                at.next_key};
    }
    const PrefixContent content{at.tokens + i * size, keys, at.last, query.salt};
    const BlockId id =
        find_hashed(query, content, i, at.stride.is_even() ? i + 1 : most, hashed, ring);
    if (id == kNoBlock || !index_.block(id).is_published()) {
      match.blocks = i;
      const std::size_t place = PrefixHashRing::place(i);
      explain(query, ring.chains[place], ring.roots[place], id, match);
      break;
    }
    if (!contents_.can_be_found(id, index_.block(id).generation)) {
      match.stop = PrefixStop::evicted;  // others took it, and nobody has noticed yet
      match.removal = PrefixRemoval::lost;
      break;
    }
    pass(at, id, keys);
  }
  evictable = at.evictable;
  match.blocks = at.blocks;
  match.tokens = match.registered_tokens = match.blocks * size;
  find_part(query, ids, generations, match);
  return match;
}

/// Says why block number match.blocks of the query cannot be had. `found` is the block that is not
/// published yet, or kNoBlock.
void PrefixCache::explain(const PrefixQuery& query, const Hash128& chain, const Hash128& root,
                          BlockId found, PrefixMatch& match) const noexcept {
  if (found != kNoBlock) {
    match.stop = PrefixStop::not_yet_published;
    match.pending_block = found;
    return;
  }
  if (const PrefixHistory::Note* note = removed_.find((chain ^ root).high); note != nullptr) {
    match.stop = PrefixStop::evicted;
    match.removal = static_cast<PrefixRemoval>(note->fact & 0xFFU);
    match.removal_serial = note->fact >> 8U;
    const PrefixEvictions::Note* taker = evictions_.find(match.removal_serial);
    if (taker == nullptr) return;
    match.removal_time = taker->time;
    if (taker->salt == query.salt) match.removal_by = taker->by;
    return;
  }
  match.stop = PrefixStop::never_seen;
  const PrefixHistory::Note* note = registered_.find(chain.high);
  if (note == nullptr) return;
  const RegistrationFact own(hash_.root_of(query.salt).high, root);
  const RegistrationFact others(note->fact);
  if (others.salt != own.salt) {
    match.stop = PrefixStop::other_salt;
  } else if (others.root != own.root) {
    match.stop = PrefixStop::other_extra_key;
  }
}

void PrefixCache::count_query(const PrefixQuery& query, const PrefixMatch& found) noexcept {
  ++stats_.queries;
  stats_.query_tokens += query.tokens.size();
  if (found.blocks > 0) ++stats_.hits;
  stats_.hit_blocks += static_cast<std::uint64_t>(found.blocks);
  stats_.hit_tokens += static_cast<std::uint64_t>(found.tokens);
  ++stats_.stops[static_cast<std::size_t>(found.stop)];
  if (ghosts_ != nullptr) observe(query);
}

/// The chain is had back from the hash of the last block.
void PrefixCache::adopted(std::uint32_t slot, const PrefixMatch& found,
                          std::span<const BlockId> ids) noexcept {
  PrefixChain& c = chains_[slot];
  c.found = found;
  if (ids.empty()) return;
  count_reuses(ids);
  rewind(slot, static_cast<std::int32_t>(ids.size()), index_.link_to(ids.back()));
  c.published = c.blocks;
}

void PrefixCache::copy_nodes(std::uint32_t slot, std::int32_t first,
                             std::span<BlockId> out) const noexcept {
  std::ranges::fill(out, kNoBlock);
  const PrefixChain& c = chains_[slot];
  if (!index_.is_current(c.last)) return;
  BlockId id = c.last.block();
  for (std::int32_t i = c.blocks - 1; i >= first; --i) {
    const auto place = static_cast<std::size_t>(i - first);
    if (place < out.size() && index_.block(id).is_published()) out[place] = id;
    id = index_.parent_of(id).block();
  }
}

}  // namespace kvarena
