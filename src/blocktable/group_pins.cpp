// Pins of blocks of groups.

#include "blocktable/group_tables.hpp"
#include "blocktable/state_tables.hpp"

#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <array>

namespace kvarena {
namespace {

using ByGroup = std::array<std::int64_t, kMaxBlockGroups>;

/// The blocks of one group that a pin holds.
struct PinnedRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

/// Checks that a range lies within the blocks `held` .. `filled` - 1 of a table.
Result<PinnedRange> range_of(const PinOptions& options, std::int64_t held, std::int64_t filled) {
  const std::int64_t first =
      options.num_blocks == -1 ? std::max(held, options.first_block) : options.first_block;
  if (options.first_block < 0 || first < held || first > filled) {
    return invalid_argument(Resource::block_index, options.first_block, held, filled);
  }
  if (options.num_blocks == -1) return PinnedRange{first, filled};
  if (options.num_blocks < 0 || options.num_blocks > filled - first) {
    return invalid_argument(Resource::num_blocks, options.num_blocks, 0, filled - first);
  }
  return PinnedRange{first, first + options.num_blocks};
}

}  // namespace

/// Checks the options of a pin that name no group, and the group otherwise.
Status BlockTables::Impl::Groups::check_pin(const PinOptions& options) const noexcept {
  if (options.group != -1) return check_group(options.group);
  if (options.first_block != 0) {
    return invalid_argument(Resource::block_index, options.first_block, 0, 0);
  }
  if (options.num_blocks == -1) return {};
  return invalid_argument(Resource::num_blocks, options.num_blocks, -1, -1);
}

/// The sequence exists and its tokens may be read. The references of a pin are taken like a fork's,
/// and counted apart.
Result<HolderId> BlockTables::Impl::Groups::pin(SequenceId id, const PinOptions& options) {
  const Sequence& s = *t.sequences.find(id);
  if (Status e = check_pin(options); !e) return e;
  ByGroup first{};
  ByGroup end{};
  const std::span<const Table> from = tables_of(id);
  for (std::size_t g = 0; g < size(); ++g) {
    if (options.group != -1 && static_cast<std::size_t>(options.group) != g) continue;
    if (list[g].is_state) {  // the present state, whole
      end[g] = states->has_all(id, s.length) && s.length > 0 ? states->find(g)->parts : 0;
      continue;
    }
    const std::int64_t filled = filled_blocks(list[g], from[g], tokens_in(list[g], id, s.length));
    const Result<PinnedRange> range = range_of(options, from[g].first_held, filled);
    if (!range) return range.status();
    first[g] = range->first;
    end[g] = range->end;
  }
  if (Status e = check_new_tables(first, end, id.value); !e) return e;
  if (t.pins.is_full()) return exhausted(Resource::holder, 1, 0, 0, Option::max_pins);
  const SequenceId number = t.pins.new_id(t.pins_ever + 1);
  const Result<HolderId> holder = t.register_pin(number, id, options);
  if (!holder) return holder;
  t.pins.insert(number).holder = *holder;
  ++t.pins_ever;
  const std::span<Table> to = tables_of_pin(number);
  std::ranges::fill(to, Table{});
  const std::int64_t entries = t.entries;
  const std::int64_t slots_before = end_slots;
  Status shared;
  for (std::size_t g = 0; g < size() && shared; ++g) {
    shared = list[g].is_state ? states->share_with_pin(s, *states->find(g), *holder, to[g], end[g])
                              : share(from[g], to[g], g, *holder, first[g], end[g]);
  }
  t.pinned_entries += t.entries - entries;
  t.entries = entries;
  end_slots = slots_before;
  if (shared) return holder;
  static_cast<void>(unpin(*holder, kNoTicket));
  --t.pins_ever;
  return shared;
}

Status BlockTables::Impl::Groups::unpin(HolderId holder, Ticket ticket) {
  const Sequence* found = t.pin_of(holder);
  if (found == nullptr) return not_found(Resource::holder, holder.value);
  const SequenceId number = found->id;
  const std::span<Table> its = tables_of_pin(number);
  std::int64_t count = 0;
  for (const Table& table : its) count += table.num_held();
  if (Status s = t.check_ticket(ticket, count); !s) return s;
  const std::int64_t entries = t.entries;
  const std::int64_t slots_before = end_slots;
  Status status;
  for (std::size_t g = size(); g-- > 0 && status;) {
    status = release_tail(holder, its[g], g, 0, ticket);
  }
  t.pinned_entries -= entries - t.entries;
  t.entries = entries;
  end_slots = slots_before;
  if (!status) return status;
  static_cast<void>(t.manager->unregister_holder(holder));
  t.pins.erase(number);
  return {};
}

}  // namespace kvarena
