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
  const std::int64_t count =
      std::min(most - at.blocks, static_cast<std::int64_t>(PrefixHash::kBatch));
  if (count <= 0) return;
  const std::span<Hash128> chains =
      std::span(ring.chains)
          .subspan(PrefixHashRing::place(at.blocks), static_cast<std::size_t>(count));
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

/// From the second batch on, blocks are hashed a batch before they are looked for, so that what the
/// search reads arrives in the meantime. A prompt that nobody has seen costs one batch.
PrefixMatch PrefixCache::match(const PrefixQuery& query, std::span<BlockId> ids,
                               std::span<Generation> generations) const noexcept {
  constexpr auto kBatch = static_cast<std::int64_t>(PrefixHash::kBatch);
  constexpr std::int64_t kAhead = 8;
  const auto size = static_cast<std::int64_t>(block_size_);
  const std::int64_t full = std::ssize(query.tokens) / size;
  const bool is_capped = full > 0 && std::ssize(query.tokens) % size == 0;
  const std::int64_t most = std::min(is_capped ? full - 1 : full, std::ssize(ids));
  PrefixMatch match{.stop = is_capped ? PrefixStop::capped : PrefixStop::less_than_a_block};
  Hashed hashed;
  hashed.root = hash_.root_of(query.salt);
  PrefixHashRing ring;
  PrefixLink parent;
  std::size_t next_key = 0;
  std::int64_t i = 0;
  for (; i < most; ++i) {
    if (i % kBatch == 0) {
      hash_batch(query, most, hashed, ring);
      if (i == kBatch) hash_batch(query, most, hashed, ring);
    }
    if (i + kAhead < hashed.blocks) index_.prefetch_block(ring.hash(i + kAhead));
    const auto its = keys_in_block(query.extra_keys, next_key, i);
    const BlockId id =
        index_.find(ring.hash(i), {query.tokens.data() + i * size, its, parent, query.salt});
    if (id == kNoBlock || !index_.block(id).is_published()) {
      match.blocks = i;
      const std::size_t place = PrefixHashRing::place(i);
      explain(query, ring.chains[place], ring.roots[place], id, match);
      break;
    }
    const Generation generation = index_.block(id).generation;
    if (!contents_.can_be_found(id, generation)) {
      match.stop = PrefixStop::evicted;  // others took it, and nobody has noticed yet
      match.removal = PrefixRemoval::lost;
      break;
    }
    next_key += its.size();
    parent = index_.link_to(id);
    ids[static_cast<std::size_t>(i)] = id;
    generations[static_cast<std::size_t>(i)] = generation;
  }
  match.blocks = i;
  match.tokens = match.registered_tokens = i * size;
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
