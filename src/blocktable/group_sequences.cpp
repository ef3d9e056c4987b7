// Sequences with groups: where they can be cut, forks, cuts and ends.

#include "base/range_checks.hpp"
#include "blocktable/append_demands.hpp"
#include "blocktable/group_tables.hpp"
#include "blocktable/state_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <array>

namespace kvarena {
namespace {

Status check_length(std::int64_t length) noexcept {
  if (length >= 0 && length <= kMaxTokens) return {};
  return invalid_argument(Resource::sequence_length, length, 0, kMaxTokens);
}

}  // namespace

std::int64_t BlockTables::Impl::Groups::restorable(SequenceId id,
                                                   std::int64_t length) const noexcept {
  return states ? states->restorable(id, length) : restorable_tokens(tables_of(id), length);
}

std::int64_t BlockTables::Impl::Groups::restorable_tokens(std::span<const Table> its,
                                                          std::int64_t length) const noexcept {
  for (std::size_t g = 0; g < size(); ++g) {
    if (!list[g].grows()) continue;
    length = kvarena::restorable_length(list[g].retention, its[g].first_held * list[g].block_size,
                                        length);
  }
  return length;
}

Status BlockTables::Impl::Groups::check_restorable(SequenceId id,
                                                   std::int64_t length) const noexcept {
  const std::int64_t longest = restorable(id, length);
  if (longest == length) return {};
  return failed_precondition(Resource::sequence_length, id.value,
                             static_cast<std::uint64_t>(length),
                             static_cast<std::uint64_t>(longest));
}

/// The child keeps what a sequence of its length keeps, as far as the parent has it.
Result<SequenceId> BlockTables::Impl::Groups::fork(SequenceId parent_id, std::int64_t length,
                                                   SequenceOptions options) {
  if (Status s = check_restorable(parent_id, length); !s) return s;
  std::array<std::int64_t, kMaxBlockGroups> first{};
  std::array<std::int64_t, kMaxBlockGroups> end{};
  const std::span<const Table> from = tables_of(parent_id);
  for (std::size_t g = 0; g < size(); ++g) {
    const std::int64_t tokens = tokens_in(list[g], parent_id, length);
    end[g] = std::min<std::int64_t>(blocks_for(list[g], tokens), from[g].tree.num_entries);
    if (list[g].is_state) end[g] = length > 0 ? states->find(g)->parts : 0;
    if (list[g].grows() && length > 0) {
      first[g] = std::max<std::int64_t>(from[g].first_held, list[g].first_kept(length));
    }
  }
  if (Status s = check_new_tables(first, end, parent_id.value); !s) return s;
  options.cross_tokens = cross_tokens[slot_of(parent_id)];
  const Result<SequenceId> id = insert(options, t.owners[slot_of(parent_id)]);
  if (!id) return id;
  Sequence& child = *t.sequences.find(*id);
  const std::span<Table> to = tables_of(*id);
  Status shared;
  for (std::size_t g = 0; g < size(); ++g) {
    if (!shared || list[g].is_state) continue;
    shared = share(from[g], to[g], g, child.holder, first[g], end[g]);
  }
  if (states && shared) shared = states->share(parent_id, child, length);
  if (!shared) {
    static_cast<void>(destroy_many(std::span(&*id, 1), kNoTicket));
    --t.sequences_ever;
    return shared;
  }
  child.length = static_cast<std::int32_t>(length);
  t.tokens += length;
  place_tails(child);
  note_release(child);
  if (t.prefix != nullptr) t.fork_prefix(*t.sequences.find(parent_id), child);
  return id;
}

/// The sequences exist and are named once.
Status BlockTables::Impl::Groups::destroy_many(std::span<const SequenceId> ids, Ticket ticket) {
  std::int64_t released = 0;
  for (const SequenceId id : ids) released += num_held_by(id);
  if (Status status = t.check_ticket(ticket, released); !status) return status;
  for (const SequenceId id : ids) {
    Sequence& s = *t.sequences.find(id);
    const std::span<Table> its = tables_of(id);
    if (t.prefix != nullptr) t.prefix->end(t.prefix_owner(s));
    for (std::size_t g = size(); g-- > 0;) {
      if (Status status = release_tail(s.holder, its[g], g, 0, ticket); !status) return status;
    }
    if (Status status = release_kept(id, ticket); !status) return status;
    if (states) states->end(id);
    set_promise(id, 0);
    t.erase(id, s);
  }
  return {};
}

/// The length has been checked against the sequence's. Blocks of an encoder stay.
Status BlockTables::Impl::Groups::truncate(SequenceId id, std::int64_t length, Ticket ticket) {
  if (Status s = check_restorable(id, length); !s) return s;
  Sequence& s = *t.sequences.find(id);
  const std::span<Table> its = tables_of(id);
  const std::int64_t cut = s.length - length;
  const auto fences_tail = [&](const Group& group) {
    return ticket != kNoTicket && cut > 0 && length % group.block_size != 0;
  };
  std::int64_t fenced = 0;
  for (std::size_t g = 0; g < size(); ++g) {
    if (list[g].is_state && cut > 0) fenced += its[g].tree.num_entries;
    if (!list[g].grows()) continue;
    const std::int64_t keep =
        std::max<std::int64_t>(blocks_for(list[g], length), its[g].first_held);
    fenced += its[g].tree.num_entries - keep + (fences_tail(list[g]) ? 1 : 0);
  }
  if (Status status = t.check_ticket(ticket, fenced); !status) return status;
  if (states && (cut > 0 || states->is_lost(s))) {
    if (Status status = states->cut(s, length, ticket); !status) return status;
  }
  if (t.prefix != nullptr) t.prefix->cut(t.prefix_owner(s), length);
  for (std::size_t g = size(); g-- > 0;) {
    if (!list[g].grows()) continue;
    const std::int64_t keep = blocks_for(list[g], length);
    if (fences_tail(list[g])) {
      if (Status status = fence_tail(s, its[g], keep - 1, ticket); !status) return status;
    }
    if (keep == its[g].tree.num_entries && keep != 0) continue;
    if (Status status = release_tail(s.holder, its[g], g, keep, ticket); !status) return status;
  }
  s.length = static_cast<std::int32_t>(length);
  t.tokens -= cut;
  place_tails(s);
  note_release(s);
  if (promised[slot_of(id)] != 0) renew_promise(s);
  return {};
}

// ---- public calls ------------------------------------------------------------------------------

Result<SequenceId> BlockTables::create_sequence_from(std::int64_t length,
                                                     std::span<const GroupBlocks> groups,
                                                     const SequenceOptions& options) {
  if (!impl_->groups) return unsupported(Resource::num_groups, groups.size());
  if (Status s = check_length(length); !s) return s;
  if (Status s =
          check_option(Option::cross_tokens, options.cross_tokens, 0, impl_->max_cross_tokens);
      !s) {
    return s;
  }
  if (options.max_length_tokens > 0 && length > options.max_length_tokens) {
    return too_long(kNoSequence, length, options.max_length_tokens);
  }
  if (Status s = impl_->check_prefix_options(options, Impl::Origin::imported); !s) return s;
  return impl_->groups->create_from(length, groups, options);
}

Result<std::int64_t> BlockTables::restorable_length(SequenceId id, std::int64_t length) const {
  const Sequence* s = impl_->sequences.find(id);
  if (s == nullptr) return not_found(Resource::sequence, id.value);
  if (Status e = check_length(length); !e) return e;
  const std::int64_t at_most = std::min<std::int64_t>(length, s->length);
  if (!impl_->groups) return at_most;
  return impl_->groups->restorable(id, at_most);
}

}  // namespace kvarena
