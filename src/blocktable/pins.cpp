// References on the blocks of a sequence: for a fork, and for a pin, a holder that keeps them. A
// pin has a table and a holder, as a sequence has, in a table of its own.

#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>

namespace kvarena {
namespace {

/// Checks that a range lies within the `filled` first blocks, and fills in its default length.
Result<std::int64_t> end_of_range(const PinOptions& options, std::int64_t filled) noexcept {
  const std::int64_t first = options.first_block;
  if (first < 0 || first > filled) return invalid_argument(Resource::block_index, first, 0, filled);
  if (options.num_blocks == -1) return filled;
  if (options.num_blocks < 0 || options.num_blocks > filled - first) {
    return invalid_argument(Resource::num_blocks, options.num_blocks, 0, filled - first);
  }
  return first + options.num_blocks;
}

}  // namespace

Status BlockTables::Impl::share_blocks(const Sequence& parent, Sequence& child, std::int64_t first,
                                       std::int64_t end) {
  while (first < end) {
    const auto place = static_cast<std::int32_t>(first & kPageMask);
    const std::int32_t leaf =
        parent.table.leaf_page(pages, static_cast<std::int32_t>(first >> kPageShift));
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(kPageEntries - place, end - first));
    const BlockId* const ids = pages.ids(leaf) + place;
    const Generation* const generations = pages.generations(leaf) + place;
    const Status status =
        manager->retain(child.holder, std::span(ids, count), std::span(generations, count));
    if (!status) return status;
    child.table.append(pages, ids, generations, static_cast<std::int32_t>(count));
    entries += static_cast<std::int64_t>(count);
    first += static_cast<std::int64_t>(count);
  }
  return {};
}

Status BlockTables::Impl::check_pages_of_new(std::int64_t num_entries,
                                             std::uint64_t subject) const noexcept {
  const std::int64_t needed = PageTree::pages_for(num_entries);
  if (needed <= pages.available()) return {};
  return exhausted(Resource::table_page, static_cast<std::uint64_t>(needed),
                   static_cast<std::uint64_t>(pages.available()), subject, Option::max_table_pages);
}

/// Returns the pin that a holder stands for, or nullptr.
const Sequence* BlockTables::Impl::pin_of(HolderId holder) const noexcept {
  const Result<HolderReport> report = manager->holder(holder);
  const Sequence* pin = report ? pins.find(SequenceId(report->number)) : nullptr;
  return pin != nullptr && pin->holder == holder ? pin : nullptr;
}

/// The owner is the sequence's unless the options name one.
Result<HolderId> BlockTables::Impl::register_pin(SequenceId number, SequenceId of,
                                                 const PinOptions& options) {
  const std::uint64_t owner =
      options.owner != 0 ? options.owner : owners[SequenceTable::slot_of(of)];
  return manager->register_holder({.number = number.value,
                                   .owner = owner,
                                   .purpose = options.purpose,
                                   .since_ns = options.since_ns,
                                   .deadline_ns = options.deadline_ns});
}

/// The references of a pin are taken like a fork's, and counted apart.
Result<HolderId> BlockTables::pin(SequenceId id, const PinOptions& options) {
  Impl& t = *impl_;
  const Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (Status s = Impl::check_imported(id, *sequence); !s) return s;
  if (t.groups) return t.groups->pin(id, options);
  if (options.group < -1 || options.group > 0) {
    return invalid_argument(Resource::num_groups, options.group, -1, 0);
  }
  const Result<std::int64_t> end = end_of_range(options, sequence->filled_blocks);
  if (!end) return end.status();
  const std::int64_t count = *end - options.first_block;
  if (Status s = t.check_pages_of_new(count, id.value); !s) return s;
  if (t.pins.is_full()) return exhausted(Resource::holder, 1, 0, 0, Option::max_pins);
  const SequenceId number = t.pins.new_id(t.pins_ever + 1);
  const Result<HolderId> holder = t.register_pin(number, id, options);
  if (!holder) return holder;
  Sequence& pin = t.pins.insert(number);
  pin.holder = *holder;
  ++t.pins_ever;
  const std::int64_t entries = t.entries;
  const Status shared = t.share_blocks(*sequence, pin, options.first_block, *end);
  t.entries = entries;
  t.pinned_entries += pin.table.num_entries;
  if (shared) return holder;
  static_cast<void>(unpin(*holder));
  --t.pins_ever;
  return shared;
}

Status BlockTables::unpin(HolderId holder, Ticket ticket) {
  Impl& t = *impl_;
  if (t.groups) return t.groups->unpin(holder, ticket);
  const Sequence* found = t.pin_of(holder);
  if (found == nullptr) return not_found(Resource::holder, holder.value);
  Sequence& pin = *t.pins.find(found->id);
  const std::int64_t count = pin.table.num_entries;
  if (Status s = t.check_ticket(ticket, count); !s) return s;
  const std::int64_t entries = t.entries;
  const Status status = t.release_entries(pin, 0, ticket);
  t.entries = entries;
  t.pinned_entries -= count - pin.table.num_entries;
  if (!status) return status;
  static_cast<void>(t.manager->unregister_holder(holder));
  t.pins.erase(pin.id);
  return {};
}

Result<std::int64_t> BlockTables::blocks_of(HolderId pin, std::span<BlockId> out,
                                            std::int32_t group) const {
  const Sequence* found = impl_->pin_of(pin);
  if (found == nullptr) return not_found(Resource::holder, pin.value);
  if (Status s = impl_->check_group(group); !s) return s;
  if (impl_->groups) {
    return impl_->groups->copy_blocks(
        impl_->groups->tables_of_pin(found->id)[static_cast<std::size_t>(group)], out);
  }
  return impl_->copy_blocks(*found, out);
}

}  // namespace kvarena
