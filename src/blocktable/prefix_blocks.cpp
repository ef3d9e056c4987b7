// What is asked of blocks without sequences, and how they come and go; prefix_positions.cpp
// registers them.

#include "blocktable/prefix_blocks.hpp"

#include "base/id_space.hpp"

#include <algorithm>

namespace kvarena {

PrefixBlocks::PrefixBlocks(BlockManager& manager, const BlockTablesOptions& options)
    : manager_(&manager),
      cache_(manager, options),
      number_(take_id_space(IdKind::prefix_position) + 1),
      ids_(static_cast<std::size_t>(manager.num_blocks())),
      generations_(static_cast<std::size_t>(manager.num_blocks())),
      salts_(options.prefix_cache.events.tell == nullptr
                 ? 0
                 : static_cast<std::size_t>(manager.num_blocks())) {}

std::int64_t PrefixBlocks::bytes(std::int64_t num_blocks,
                                 const BlockTablesOptions& options) noexcept {
  std::size_t each = sizeof(BlockId) + sizeof(Generation);
  if (options.prefix_cache.events.tell != nullptr) each += sizeof(std::uint64_t);
  return PrefixCache::bytes(num_blocks, options) + num_blocks * static_cast<std::int64_t>(each);
}

/// A block that is being written and was released without a word is as if it had never been.
Result<PrefixMatch> PrefixBlocks::match(const PrefixQuery& asked) {
  const PrefixQuery query{asked.tokens, cache_.known_as(asked.salt), asked.extra_keys};
  if (std::ssize(query.tokens) > kMaxTokens) {
    return invalid_argument(Resource::num_tokens, std::ssize(query.tokens), 0, kMaxTokens);
  }
  if (Status s = cache_.check_keys(query.extra_keys); !s) return s;
  std::int64_t evictable = 0;
  PrefixMatch found = cache_.match(query, std::span(ids_.data(), ids_.size()),
                                   std::span(generations_.data(), generations_.size()), evictable);
  if (found.stop == PrefixStop::not_yet_published && !cache_.is_alive(found.pending_block)) {
    found.stop = PrefixStop::never_seen;
    found.pending_block = kNoBlock;
  }
  return found;
}

Result<PrefixPosition> PrefixBlocks::take(HolderId holder, const PrefixQuery& query,
                                          const PrefixMatch& found) {
  if (Status s = manager_->holder(holder).status(); !s) return s;
  if (found.stop == PrefixStop::not_yet_published && cache_.duplicates() == DuplicateRule::wait) {
    return failed_precondition(Resource::content,
                               static_cast<std::uint64_t>(found.pending_block.value));
  }
  const std::span<const BlockId> ids = found_ids(found);
  if (!ids.empty()) {
    if (Status s = manager_->retain(holder, ids, found_generations(found)); !s) return s;
    cache_.count_reuses(ids);
  }
  cache_.count_query(query, found);
  return position_behind(query, found);
}

Status PrefixBlocks::check_block(BlockId id) const noexcept {
  if (id.value >= 0 && id.value < manager_->num_blocks()) return {};
  return not_found(Resource::block, static_cast<std::uint64_t>(id.value));
}

Status PrefixBlocks::check_handles(const Handles& blocks) const noexcept {
  const std::int64_t count = std::ssize(blocks.ids);
  if (std::ssize(blocks.generations) != count) {
    return invalid_argument(Resource::span_size, std::ssize(blocks.generations), count, count);
  }
  for (std::size_t i = 0; i < blocks.ids.size(); ++i) {
    const BlockId id = blocks.ids[i];
    if (Status s = check_block(id); !s) return s;
    const Generation now = cache_.contents_.generation(id);
    if (now == blocks.generations[i]) continue;
    return {StatusCode::stale_handle,
            Resource::block,
            Option::none,
            0,
            static_cast<std::uint64_t>(id.value),
            blocks.generations[i].value,
            now.value};
  }
  return {};
}

Result<std::int64_t> PrefixBlocks::publish(const Handles& blocks) {
  if (Status s = check_handles(blocks); !s) return s;
  notice(blocks.ids);
  std::int64_t published = 0;
  for (const BlockId id : blocks.ids) {
    const PrefixBlock& block = cache_.index_.block(id);
    if (!block.is_registered() || block.is_published()) continue;
    cache_.publish_block(id, salts_.size() == 0 ? 0 : salts_[static_cast<std::size_t>(id.value)]);
    ++published;
  }
  return published;
}

/// The last blocks go first, so that each has its own cause.
Status PrefixBlocks::forget(std::span<const BlockId> ids) {
  for (const BlockId id : ids) {
    if (Status s = check_block(id); !s) return s;
  }
  for (std::size_t i = ids.size(); i-- > 0;) {
    const PrefixBlock& block = cache_.index_.block(ids[i]);
    if (!block.is_registered()) continue;
    cache_.remove(ids[i], block.is_published() ? PrefixRemoval::forgotten : PrefixRemoval::aborted);
  }
  return {};
}

/// A published block that has gone and is held again was evicted for its holder.
void PrefixBlocks::notice(std::span<const BlockId> ids) noexcept {
  for (const BlockId id : ids) {
    const PrefixBlock& block = cache_.index_.block(id);
    if (!block.is_registered() || cache_.is_alive(id)) continue;
    if (cache_.fault_ == PrefixFault::misses_evictions && block.is_published()) {
      const Generation now = manager_->generation(id);
      cache_.index_.block(id).generation = now;
      static_cast<void>(manager_->set_content(id, now, BlockContent::published));
      continue;
    }
    const bool is_anew =
        manager_->generation(id) != block.generation && manager_->reference_count(id) != 0;
    cache_.remove(id, !block.is_published() ? PrefixRemoval::aborted
                      : is_anew             ? PrefixRemoval::evicted
                                            : PrefixRemoval::lost);
  }
}

Status PrefixBlocks::check() const {
  const SequenceTable none(0);
  const TablePages no_pages(0);
  return cache_.check(none, no_pages, [](const Sequence& s) -> const PageTree& { return s.table; });
}

}  // namespace kvarena
