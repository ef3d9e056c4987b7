// The prefix cache's public calls: each checks its arguments and asks the cache.

#include "base/range_checks.hpp"
#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <utility>

namespace kvarena {
namespace {

/// The tables have no prefix cache.
Status there_is_none() noexcept {
  Status status = failed_precondition(Resource::none);
  status.option = Option::prefix_cache;
  return status;
}

Status check_num_tokens(std::span<const std::int32_t> tokens, std::int64_t most) noexcept {
  const std::int64_t count = std::ssize(tokens);
  return count <= most ? Status{} : invalid_argument(Resource::num_tokens, count, 0, most);
}

}  // namespace

/// Uses the scratch memory of append for the blocks that are found.
Result<PrefixMatch> BlockTables::match(const PrefixQuery& query) const {
  const Impl& t = *impl_;
  if (t.prefix == nullptr) return there_is_none();
  if (Status s = check_num_tokens(query.tokens, kMaxTokens); !s) return s;
  if (Status s = t.prefix->check_keys(query.extra_keys); !s) return s;
  std::int64_t evictable = 0;
  PrefixMatch found = t.prefix->match(
      query, std::span(impl_->new_ids.data(), impl_->new_ids.size()),
      std::span(impl_->new_generations.data(), impl_->new_generations.size()), evictable);
  if (t.groups) t.groups->fit_prefix(found);
  return found;
}

PageTree& BlockTables::Impl::registered_tree(Sequence& s) noexcept {
  return groups->registered_table(s.id).tree;
}

bool BlockTables::Impl::has_blocks(const Sequence& s) const noexcept {
  return groups ? groups->num_held_by(s.id) != 0 : s.table.num_entries != 0;
}

/// Finds the prefix that a sequence is to begin with, and checks that it can be had. The blocks are
/// in the scratch memory of append.
Result<PrefixMatch> BlockTables::Impl::find_prefix(const PrefixQuery& query, std::uint64_t subject,
                                                   std::int64_t max_length) {
  if (std::ssize(query.tokens) > max_length) {
    return Status{StatusCode::context_length_exceeded,
                  Resource::sequence_length,
                  Option::none,
                  0,
                  subject,
                  query.tokens.size(),
                  static_cast<std::uint64_t>(max_length)};
  }
  std::int64_t revived = 0;
  PrefixMatch found =
      prefix->match(query, std::span(new_ids.data(), new_ids.size()),
                    std::span(new_generations.data(), new_generations.size()), revived);
  if (found.stop == PrefixStop::not_yet_published && prefix->duplicates() == DuplicateRule::wait) {
    return failed_precondition(Resource::content,
                               static_cast<std::uint64_t>(found.pending_block.value));
  }
  if (groups) {  // take_prefix checks the rest
    groups->fit_prefix(found);
    return found;
  }
  if (Status s = check_pages_of_new(found.blocks, subject); !s) return s;
  if (revived != 0) {
    if (Status s = manager->check_available(revived); !s) return s;
  }
  if (found.part_tokens > 0 && !has_room_for_part(found, std::ssize(query.tokens), revived)) {
    found.tokens -= std::exchange(found.part_tokens, 0);
  }
  return found;
}

/// A cached block cannot be evicted between the match and the copy. Without a block more for that
/// time, the append of the rest could be refused because of the part.
bool BlockTables::Impl::has_room_for_part(const PrefixMatch& found, std::int64_t num_tokens,
                                          std::int64_t revived) const noexcept {
  const BlockId part = new_ids[static_cast<std::size_t>(found.blocks)];
  if (PageTree::pages_for(found.blocks + 1) > pages.available()) return false;
  if (manager->state(part) != BlockState::evictable) return true;
  const std::int64_t to_come = blocks_for(num_tokens) - found.blocks;
  return manager->can_allocate(revived + 1 + to_come, Urgency::admission);
}

/// Gives an empty sequence the blocks that find_prefix has found.
Status BlockTables::Impl::take_prefix(Sequence& s, std::span<const std::int32_t> its_tokens,
                                      const PrefixMatch& found) {
  const auto slot = static_cast<std::uint32_t>(SequenceTable::slot_of(s.id));
  const bool has_part = found.part_tokens > 0;
  const auto blocks = static_cast<std::size_t>(found.blocks);
  const std::size_t count = blocks + (has_part ? 1 : 0);
  const std::span<const BlockId> ids(new_ids.data(), count);
  const std::span<const Generation> generations(new_generations.data(), count);
  if (count != 0 && groups) {
    if (Status status = groups->take_prefix(s, found); !status) return status;
  } else if (count != 0) {
    if (Status status = manager->retain(s.holder, ids, generations); !status) return status;
    s.table.append(pages, ids.data(), generations.data(), static_cast<std::int32_t>(count));
    entries += static_cast<std::int64_t>(count);
    s.length = static_cast<std::int32_t>(found.tokens);
    s.filled_blocks = s.table.num_entries;
    tokens += found.tokens;
    place_tail(s);
  }
  prefix->adopted(slot, found, ids.first(blocks));
  if (has_part) prefix->adopt_part(slot, ids.back());
  prefix->count_query(prefix->query_of(slot, its_tokens), found);
  if (groups) groups->ask_for_states(s, std::ssize(its_tokens), found);
  return {};
}

/// The fork does not know tokens that an undo can take back: they may never be written.
void BlockTables::Impl::fork_prefix(Sequence& parent, Sequence& child) noexcept {
  prefix->fork(prefix_owner(parent), prefix_owner(child));
  for (std::size_t i = 0; is_undoable && i < num_grown; ++i) {
    if (grown[i].id != parent.id) continue;
    if (grown[i].old_length < child.length) {
      prefix->untell(prefix_owner(child), grown[i].old_length);
    }
    return;
  }
}

Result<PrefixMatch> BlockTables::adopt(SequenceId id, std::span<const std::int32_t> tokens) {
  Impl& t = *impl_;
  if (t.prefix == nullptr) return there_is_none();
  Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (Status s = Impl::check_imported(id, *sequence); !s) return s;
  if (sequence->length != 0 || t.has_blocks(*sequence)) {
    return failed_precondition(Resource::sequence, id.value);
  }
  if (Status s = check_num_tokens(tokens, kMaxTokens); !s) return s;
  const auto slot = static_cast<std::uint32_t>(SequenceTable::slot_of(id));
  const Result<PrefixMatch> found =
      t.find_prefix(t.prefix->query_of(slot, tokens), id.value, sequence->max_length);
  if (!found) return found;
  if (Status s = t.take_prefix(*sequence, tokens, *found); !s) return s;
  return found;
}

Result<PrefixMatch> BlockTables::prefix_of(SequenceId id) const {
  if (impl_->prefix == nullptr) return there_is_none();
  if (impl_->sequences.find(id) == nullptr) return not_found(Resource::sequence, id.value);
  return impl_->prefix->chain(static_cast<std::uint32_t>(SequenceTable::slot_of(id))).found;
}

Status BlockTables::register_tokens(SequenceId id, std::span<const std::int32_t> tokens) {
  Impl& t = *impl_;
  if (t.prefix == nullptr) return there_is_none();
  Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (Status s = Impl::check_imported(id, *sequence); !s) return s;
  const PrefixCache::Owner owner = t.prefix_owner(*sequence);
  const PrefixChain& chain = t.prefix->chain(owner.slot);
  if (Status s = check_num_tokens(tokens, sequence->length - chain.known); !s) return s;
  const auto trusted = static_cast<std::size_t>(chain.doubt - chain.known);
  t.prefix->add_tokens(owner, tokens.first(std::min(tokens.size(), trusted)));
  return {};
}

void BlockTables::Impl::publish(Sequence& s, std::int64_t length) noexcept {
  const PrefixCache::Owner owner = prefix_owner(s);
  const bool adds_references = prefix->chain(owner.slot).has_equals;
  const std::uint64_t before = manager->claim_serial();
  prefix->publish(owner, length);
  const std::uint64_t added = manager->claim_serial() - before;
  if (added == 0 || adds_references) return;
  own_claims += added;
  s.claims_seen = 0;
}

Status BlockTables::publish(SequenceId id, std::int64_t length) {
  Impl& t = *impl_;
  if (t.prefix == nullptr) return there_is_none();
  Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (length < -1 || length > sequence->length) {
    return invalid_argument(Resource::sequence_length, length, -1, sequence->length);
  }
  const PrefixChain& chain = t.chain_of(id);
  const std::int32_t before = chain.published;
  if (before != chain.blocks) t.publish(*sequence, length == -1 ? sequence->length : length);
  if (t.groups) t.groups->attach_companions(*sequence, before);
  return {};
}

Status BlockTables::withdraw_tokens(SequenceId id, std::int64_t length) {
  Impl& t = *impl_;
  if (t.prefix == nullptr) return there_is_none();
  Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (length < 0 || length > sequence->length) {
    return invalid_argument(Resource::sequence_length, length, 0, sequence->length);
  }
  t.prefix->untell(t.prefix_owner(*sequence), length);
  return {};
}

Status BlockTables::distrust_tokens(SequenceId id, std::int64_t length) {
  Impl& t = *impl_;
  if (t.prefix == nullptr) return there_is_none();
  Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (length < 0 || length > sequence->length) {
    return invalid_argument(Resource::sequence_length, length, 0, sequence->length);
  }
  t.prefix->distrust(t.prefix_owner(*sequence), length);
  return {};
}

Status BlockTables::forget(SequenceId id) {
  Impl& t = *impl_;
  if (t.prefix == nullptr) return there_is_none();
  Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  t.prefix->forget(t.prefix_owner(*sequence));
  return {};
}

Status BlockTables::forget_salt(std::uint64_t salt) {
  if (impl_->prefix == nullptr) return there_is_none();
  impl_->prefix->forget_salt(salt);
  return {};
}

Status BlockTables::forget_all() {
  if (impl_->prefix == nullptr) return there_is_none();
  impl_->prefix->forget_all();
  return {};
}

bool BlockTables::has_prefix_cache() const noexcept { return impl_->prefix != nullptr; }

PrefixUse BlockTables::prefix_use() const noexcept {
  return impl_->prefix == nullptr ? PrefixUse{} : impl_->prefix->use();
}

PrefixStats BlockTables::prefix_stats() const noexcept {
  return impl_->prefix == nullptr ? PrefixStats{} : impl_->prefix->stats();
}

}  // namespace kvarena
