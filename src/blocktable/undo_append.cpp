// Undo of the last append. Until the append is settled, its sequences keep references on the blocks
// that they copied.

#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>

namespace kvarena {

/// Releases the blocks that were kept for an undo. Their holders have the references, so this
/// cannot fail.
void BlockTables::Impl::settle() noexcept {
  is_undoable = false;
  for (std::size_t i = 0; i < num_kept_tails; ++i) {
    const KeptTail& kept = kept_tails[i];
    if (kept.block == kNoBlock) continue;  // it was put back
    static_cast<void>(manager->release(sequences.find(kept.id)->holder, std::span(&kept.block, 1),
                                       std::span(&kept.generation, 1)));
  }
  num_kept_tails = 0;
}

/// Returns how many kept blocks a sequence has.
std::int64_t BlockTables::Impl::num_kept_of(SequenceId id) const noexcept {
  const KeptTail* const first = kept_tails.data();
  return std::count_if(first, first + num_kept_tails,
                       [id](const KeptTail& kept) { return kept.id == id; });
}

/// Releases the kept block of a sequence that ends before the append is settled.
Status BlockTables::Impl::release_kept(SequenceId id, Ticket ticket) {
  for (std::size_t i = 0; i < num_kept_tails; ++i) {
    const KeptTail kept = kept_tails[i];
    if (kept.id != id) continue;
    const HolderId holder = sequences.find(id)->holder;
    const std::span<const BlockId> block(&kept.block, 1);
    const std::span<const Generation> generation(&kept.generation, 1);
    const Status status = ticket == kNoTicket
                              ? manager->release(holder, block, generation)
                              : manager->release_after(ticket, holder, block, generation);
    if (!status) return status;
    std::move(kept_tails.data() + i + 1, kept_tails.data() + num_kept_tails, kept_tails.data() + i);
    --num_kept_tails;
    break;  // an append copies one block of a sequence
  }
  return {};
}

/// Removes the new tokens of a sequence, and reserved blocks that others have claimed since.
void BlockTables::Impl::take_back_tokens(const Grown& its) {
  Sequence* s = sequences.find(its.id);
  if (s == nullptr || s->length <= its.old_length) return;
  if (prefix != nullptr) prefix->cut(prefix_owner(*s), its.old_length, true);
  tokens -= s->length - its.old_length;
  s->length = its.old_length;
  const std::int32_t were_filled = std::min(s->filled_blocks, s->table.num_entries);
  s->filled_blocks = static_cast<std::int32_t>(blocks_for(s->length));
  s->mirrored_blocks = std::min(s->mirrored_blocks, s->filled_blocks);
  // A reserved block that others have claimed since it got tokens must not be written again.
  for (std::int32_t i = s->filled_blocks; i < were_filled; ++i) {
    if (manager->claims(s->table.id_at(pages, i)) == 1) continue;
    static_cast<void>(release_entries(*s, i, kNoTicket));
    break;
  }
}

/// Releases the blocks that a growth took, except a copy.
void BlockTables::Impl::take_back_blocks(const Growth& growth) {
  Sequence* s = sequences.find(growth.id);
  if (s == nullptr) return;
  const std::int64_t keep = std::min<std::int64_t>(s->table.num_entries, growth.old_entries);
  static_cast<void>(release_entries(*s, keep, kNoTicket));
}

/// Restores the promise that a growth used, as far as there are blocks. That is the whole promise,
/// unless a copy is kept or others have taken blocks since.
void BlockTables::Impl::renew_promise(const Growth& growth) {
  const Sequence* s = sequences.find(growth.id);
  if (s == nullptr) return;
  const std::int64_t now = manager->holder(s->holder)->reserved;
  const std::int64_t left = manager->available_now() - manager->stats().reserved;
  const std::int64_t renewed = std::min(growth.promised, now + left);
  if (renewed > now) static_cast<void>(manager->reserve(s->holder, renewed, Urgency::growth));
}

/// Releases a copy and puts the copied block back in its place. Returns false when the copy is not
/// there any more.
bool BlockTables::Impl::put_back(const KeptTail& kept) {
  Sequence* s = sequences.find(kept.id);
  if (s == nullptr || kept.index >= s->table.num_entries) return false;
  BlockId& id = s->table.id_at(pages, kept.index);
  if (id != kept.copy) return false;
  Generation& generation = s->table.generation_at(pages, kept.index);
  static_cast<void>(manager->release(s->holder, std::span(&id, 1), std::span(&generation, 1)));
  id = kept.block;
  generation = kept.generation;
  s->mirrored_blocks = std::min(s->mirrored_blocks, kept.index);
  return true;
}

/// Undoes the append in reverse order, so that the free blocks get their old order.
void BlockTables::Impl::undo_append(bool copies_are_made) {
  const std::span<const Grown> sequences_grown(grown.data(), num_grown);
  for (const Grown& its : sequences_grown) take_back_tokens(its);
  std::size_t kept = num_kept_tails;  // kept blocks are in the order of the growths that copied
                                      // them
  for (std::size_t g = num_growths; g-- > 0;) {
    take_back_blocks(growths[g]);
    if (kept == 0 || kept_tails[kept - 1].id != growths[g].id) continue;
    KeptTail& tail = kept_tails[--kept];
    if (!copies_are_made && put_back(tail)) tail.block = kNoBlock;
  }
  settle();
  for (std::size_t g = 0; g < num_growths; ++g) renew_promise(growths[g]);
  for (const Grown& its : sequences_grown) {
    if (Sequence* s = sequences.find(its.id); s != nullptr) place_tail(*s);
  }
}

Status BlockTables::undo_append(bool copies_are_made) {
  if (!impl_->is_undoable) return failed_precondition(Resource::sequence);
  if (impl_->groups) {
    impl_->groups->undo_append(copies_are_made);
  } else {
    impl_->undo_append(copies_are_made);
  }
  return {};
}

void BlockTables::settle_append() noexcept {
  if (impl_->groups) return impl_->groups->settle();
  impl_->settle();
}

}  // namespace kvarena
