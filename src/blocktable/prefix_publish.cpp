// Publication of what sequences have written, and sharing of equal blocks.

#include "blocktable/prefix_cache.hpp"

#include <algorithm>

namespace kvarena {

void PrefixCache::publish(const Owner& owner, std::int64_t length) noexcept {
  PrefixChain& c = chains_[owner.slot];
  const auto end = static_cast<std::int32_t>(
      std::min<std::int64_t>(c.blocks, length / static_cast<std::int64_t>(block_size_)));
  if (end <= c.published || !holds_together(owner)) return;
  for (std::int32_t i = c.published; i < end;) {
    const std::int32_t on_leaf = BlockTables::kPageEntries - (i & kPageMask);
    const std::span<const BlockId> ids(&owner.table.id_at(owner.pages, i),
                                       static_cast<std::size_t>(std::min(on_leaf, end - i)));
    if (!publish_blocks(owner, ids)) return;
    i += static_cast<std::int32_t>(ids.size());
  }
  const bool may_share = duplicates_ == DuplicateRule::share && manager_->num_open_tickets() == 0;
  if (c.has_equals && may_share) share_equals(owner, end);
  c.published = end;
}

/// Publishes those of a sequence's blocks that it has written. Returns false when others have set
/// the content of one: what is behind it goes too.
bool PrefixCache::publish_blocks(const Owner& owner, std::span<const BlockId> ids) noexcept {
  constexpr std::size_t kAhead = 8;
  const std::uint64_t salt = chains_[owner.slot].salt;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) {
      index_.prefetch_marks(ids[i + kAhead]);
      contents_.prefetch_change(ids[i + kAhead]);
    }
    const BlockId id = ids[i];
    if (!is_written_by(owner.slot, id)) continue;
    if (!contents_.is_being_written(id, index_.block(id).generation)) {
      remove(id, PrefixRemoval::lost);
      static_cast<void>(holds_together(owner));
      return false;
    }
    publish_block(id, salt);
  }
  return true;
}

/// Goes back along the chain, whose blocks are the registered ones, and compares with the table.
void PrefixCache::share_equals(const Owner& owner, std::int32_t end) noexcept {
  PrefixChain& c = chains_[owner.slot];
  PrefixLink at = c.last;
  for (std::int32_t i = c.blocks - 1; i >= c.published; --i) {
    if (i < end) share_equal(owner, i, at.block());
    at = index_.parent_of(at.block());
  }
  c.has_equals = end < c.blocks;
}

/// Puts a registered block in the place of the sequence's own, when it is another and can be had.
void PrefixCache::share_equal(const Owner& owner, std::int32_t index, BlockId block) noexcept {
  Sequence& s = owner.sequence;
  BlockId& own = owner.table.id_at(owner.pages, index);
  Generation& own_generation = owner.table.generation_at(owner.pages, index);
  if (own == block || !index_.block(block).is_published()) return;
  const Generation generation = index_.block(block).generation;
  const std::span<const BlockId> ids(&block, 1);
  const std::span<const Generation> generations(&generation, 1);
  if (manager_->count_published(ids, generations) == 0) return;
  if (!manager_->retain(s.holder, ids, generations)) return;
  static_cast<void>(manager_->release(s.holder, std::span(&own, 1), std::span(&own_generation, 1)));
  if (index == s.filled_blocks - 1) {
    s.next_slot += (std::int64_t{block.value} - own.value) * static_cast<std::int64_t>(block_size_);
    s.claims_seen = 0;
  }
  own = block;
  own_generation = generation;
  s.mirrored_blocks = std::min(s.mirrored_blocks, index);
  ++stats_.shared;
}

}  // namespace kvarena
