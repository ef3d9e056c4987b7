// The search for the longest published prefix, and the reasons why it ends.

#include "blocktable/prefix_cache.hpp"

#include <algorithm>
#include <array>

namespace kvarena {

std::span<const ExtraKey> PrefixCache::keys_in_block(std::span<const ExtraKey> keys,
                                                     std::size_t first,
                                                     std::int64_t block) const noexcept {
  const std::int64_t end = (block + 1) * static_cast<std::int64_t>(block_size_);
  std::size_t last = first;
  while (last < keys.size() && keys[last].first_token < end) ++last;
  return keys.subspan(first, last - first);
}

/// Hashes the next blocks of a query, and has the cache fetch where they are looked for.
void PrefixCache::hash_run(const PrefixQuery& query, Search& at, PrefixRun& run) const noexcept {
  const auto size = static_cast<std::int64_t>(block_size_);
  hash_.extend(at.chain, query.tokens.data() + at.blocks * size, size,
               std::span(run.chains).first(run.count));
  at.chain = run.chains[run.count - 1];
  std::size_t key = at.next_key;
  for (std::size_t i = 0; i < run.count; ++i) {
    const std::int64_t block = at.blocks + static_cast<std::int64_t>(i);
    const auto its = keys_in_block(query.extra_keys, key, block);
    if (!its.empty()) at.root = hash_.root_with(at.root, its);
    key += its.size();
    run.roots[i] = at.root;
    index_.prefetch_table(run.chains[i] ^ at.root);
  }
  for (std::size_t i = 0; i < run.count; ++i) {
    index_.prefetch_block(run.chains[i] ^ run.roots[i]);
  }
}

/// Looks for the blocks of a run, up to the first that is not there or not published. Returns that
/// one's block when it is being written, or kNoBlock.
BlockId PrefixCache::find_run(const PrefixQuery& query, Search& at, PrefixRun& run,
                              std::span<BlockId> ids,
                              std::span<Generation> generations) const noexcept {
  const auto size = static_cast<std::int64_t>(block_size_);
  for (run.found = 0; run.found < run.count; ++run.found) {
    const auto its = keys_in_block(query.extra_keys, at.next_key, at.blocks);
    const PrefixContent content{query.tokens.data() + at.blocks * size, its, at.parent, query.salt};
    const BlockId id = index_.find(run.chains[run.found] ^ run.roots[run.found], content);
    if (id == kNoBlock || !index_.block(id).is_published()) return id;
    at.next_key += its.size();
    at.parent = index_.link_to(id);
    ids[run.found] = id;
    generations[run.found] = index_.block(id).generation;
    ++at.blocks;
  }
  return kNoBlock;
}

/// Goes run by run, and asks the manager about the blocks of each.
PrefixMatch PrefixCache::match(const PrefixQuery& query, std::span<BlockId> ids,
                               std::span<Generation> generations) const noexcept {
  const auto size = static_cast<std::int64_t>(block_size_);
  const std::int64_t full = std::ssize(query.tokens) / size;
  const bool is_capped = full > 0 && std::ssize(query.tokens) % size == 0;
  const std::int64_t most = std::min(is_capped ? full - 1 : full, std::ssize(ids));
  PrefixMatch match{.stop = is_capped ? PrefixStop::capped : PrefixStop::less_than_a_block};
  Search at;
  at.root = hash_.root_of(query.salt);
  PrefixRun run;
  while (match.blocks < most) {
    run.count =
        static_cast<std::size_t>(std::min<std::int64_t>(PrefixHash::kBatch, most - match.blocks));
    const std::span<BlockId> its_ids = ids.subspan(static_cast<std::size_t>(match.blocks));
    const std::span<Generation> its = generations.subspan(static_cast<std::size_t>(match.blocks));
    hash_run(query, at, run);
    const BlockId pending = find_run(query, at, run, its_ids, its);
    const auto alive = static_cast<std::size_t>(
        manager_->count_published(its_ids.first(run.found), its.first(run.found)));
    match.blocks += static_cast<std::int64_t>(alive);
    if (alive == run.count) continue;
    if (alive == run.found) {
      explain(query, run.chains[alive], run.roots[alive], pending, match);
    } else {
      match.stop = PrefixStop::evicted;  // others took it, and nobody has noticed yet
      match.removal = PrefixRemoval::lost;
    }
    break;
  }
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

void PrefixCache::count_query(std::uint32_t slot, std::span<const std::int32_t> tokens,
                              const PrefixMatch& found) noexcept {
  ++stats_.queries;
  stats_.query_tokens += tokens.size();
  if (found.blocks > 0) ++stats_.hits;
  stats_.hit_blocks += static_cast<std::uint64_t>(found.blocks);
  stats_.hit_tokens += static_cast<std::uint64_t>(found.tokens);
  ++stats_.stops[static_cast<std::size_t>(found.stop)];
  if (ghosts_ != nullptr) observe(query_of(slot, tokens));
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
  BlockId id = c.last.block;
  for (std::int32_t i = c.blocks - 1; i >= first; --i) {
    const auto place = static_cast<std::size_t>(i - first);
    if (place < out.size() && index_.block(id).is_published()) out[place] = id;
    id = index_.parent_of(id).block;
  }
}

}  // namespace kvarena
