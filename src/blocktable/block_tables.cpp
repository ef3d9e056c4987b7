#include "kvarena/blocktable/block_tables.hpp"

#include "base/range_checks.hpp"
#include "blocktable/append_demands.hpp"
#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "blocktable/state_tables.hpp"

#include <array>
#include <new>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxBlockSize = 65536;
constexpr std::int64_t kMaxSequences = SequenceTable::kMaxSlots;

Status check_range(Resource argument, std::int64_t value, std::int64_t smallest,
                   std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return invalid_argument(argument, value, smallest, largest);
}

/// The default number of pages: every block is in kSharers tables, and every sequence and pin has
/// one page more. Directory pages come on top: one for each sequence of two leaves or more, and one
/// for every 64 leaves.
std::int64_t table_pages(std::int64_t num_blocks, const BlockTablesOptions& options) noexcept {
  if (options.max_table_pages != 0) return options.max_table_pages;
  const auto tables_each =
      static_cast<std::int64_t>(std::max<std::size_t>(1, options.groups.size()));
  const std::int64_t sequences =
      tables_each * (std::int64_t{options.max_sequences} + options.max_pins);
  const std::int64_t entries = std::min(BlockManager::kSharers, sequences) * num_blocks;
  const std::int64_t leaves = entries / BlockTables::kPageEntries + 1 + sequences;
  return leaves + std::min(sequences, leaves) + leaves / 64 + 4;
}

}  // namespace

std::int64_t BlockTables::host_bytes(std::int64_t num_blocks,
                                     const BlockTablesOptions& options) noexcept {
  constexpr auto bytes_of = [](std::int64_t count, std::size_t each) {
    return count * static_cast<std::int64_t>(each);
  };
  constexpr std::size_t kSequenceBytes =
      sizeof(Sequence) + sizeof(std::uint32_t) + sizeof(std::uint64_t) + sizeof(AppendedRow) +
      sizeof(Impl::Growth) + sizeof(HolderDemand) + sizeof(Impl::SharedTail) + sizeof(BlockCopy) +
      sizeof(Impl::Grown) + sizeof(Impl::KeptTail) + sizeof(std::int64_t) +
      2 * sizeof(std::int32_t);
  constexpr std::size_t kEntryBytes = sizeof(BlockId) + sizeof(Generation);
  constexpr std::size_t kPageBytes = kPageEntries * kEntryBytes + sizeof(std::int32_t);
  return bytes_of(table_pages(num_blocks, options), kPageBytes) +
         bytes_of(options.max_sequences, kSequenceBytes) + bytes_of(num_blocks, kEntryBytes) +
         bytes_of(num_blocks, sizeof(std::int32_t)) +
         bytes_of(options.max_pins, sizeof(Sequence) + sizeof(std::uint32_t)) +
         bytes_of(options.max_append_tokens, sizeof(std::int64_t)) +
         PrefixCache::bytes(num_blocks, options) +
         (options.groups.empty()
              ? 0
              : Impl::Groups::host_bytes(num_blocks, table_pages(num_blocks, options), options));
}

BlockTables::Impl::Impl(BlockManager& block_manager, const BlockTablesOptions& options)
    : manager(&block_manager),
      block_size(options.block_size_tokens),
      max_append_tokens(options.max_append_tokens),
      report_rows(options.report_rows || options.can_undo),
      can_undo(options.can_undo),
      sequences(options.max_sequences),
      pins(options.max_pins),
      owners(static_cast<std::size_t>(options.max_sequences)),
      pages(options.max_table_pages),
      prefix(options.prefix_cache.is_on ? std::make_unique<PrefixCache>(block_manager, options)
                                        : nullptr),
      slots(static_cast<std::size_t>(options.max_append_tokens)),
      rows(static_cast<std::size_t>(options.max_sequences)),
      new_ids(static_cast<std::size_t>(block_manager.num_blocks())),
      new_generations(static_cast<std::size_t>(block_manager.num_blocks())),
      growths(static_cast<std::size_t>(options.max_sequences)),
      holder_demands(static_cast<std::size_t>(options.max_sequences)),
      sharers(static_cast<std::size_t>(block_manager.num_blocks())),
      shared_tails(static_cast<std::size_t>(options.max_sequences)),
      copies(static_cast<std::size_t>(options.max_sequences)),
      grown(static_cast<std::size_t>(options.max_sequences)),
      kept_tails(static_cast<std::size_t>(options.max_sequences)),
      view_pages(static_cast<std::size_t>(options.max_table_pages)),
      view_row_offsets(static_cast<std::size_t>(options.max_sequences)),
      view_lengths(static_cast<std::size_t>(options.max_sequences)),
      view_num_blocks(static_cast<std::size_t>(options.max_sequences)) {
  if (!options.groups.empty()) groups = std::make_unique<Groups>(*this, options);
}

BlockTables::Impl::~Impl() = default;

void BlockTables::Impl::place_tail(Sequence& sequence) noexcept {
  sequence.next_slot = 0;
  sequence.room = 0;
  sequence.claims_seen = 0;
  if (sequence.length == 0) return;
  const std::int64_t in_last = (sequence.length - 1) % block_size + 1;
  const BlockId last = sequence.table.id_at(pages, sequence.filled_blocks - 1);
  sequence.next_slot = last.value * block_size + in_last;
  sequence.room = static_cast<std::int32_t>(block_size - in_last);
}

Status BlockTables::Impl::check_ticket(Ticket ticket, std::int64_t released) const noexcept {
  if (ticket == kNoTicket) return {};
  if (!manager->is_open(ticket)) return not_found(Resource::ticket, ticket.value);
  const std::int64_t available = manager->fence_entries_available();
  if (released <= available) return {};
  return exhausted(Resource::fence_entry, static_cast<std::uint64_t>(released),
                   static_cast<std::uint64_t>(available), 0, Option::max_fence_entries);
}

Status BlockTables::Impl::release_entries(Sequence& sequence, std::int64_t keep, Ticket ticket) {
  std::array<BlockId, kPageEntries> ids;
  std::array<Generation, kPageEntries> generations;
  PageTree& table = sequence.table;
  while (table.num_entries > keep) {
    const std::int64_t on_leaf = table.on_last_leaf();
    const std::int64_t count = std::min(on_leaf, table.num_entries - keep);
    const std::int64_t first = on_leaf - count;
    const auto size = static_cast<std::size_t>(count);
    std::reverse_copy(pages.ids(table.last_leaf) + first, pages.ids(table.last_leaf) + on_leaf,
                      ids.begin());
    std::reverse_copy(pages.generations(table.last_leaf) + first,
                      pages.generations(table.last_leaf) + on_leaf, generations.begin());
    const std::span<const BlockId> last_first(ids.data(), size);
    const std::span<const Generation> their(generations.data(), size);
    const Status status = ticket == kNoTicket
                              ? manager->release(sequence.holder, last_first, their)
                              : manager->release_after(ticket, sequence.holder, last_first, their);
    if (!status) return status;
    table.remove_last(pages, static_cast<std::int32_t>(count));
    entries -= count;
  }
  return {};
}

Status BlockTables::Impl::fence_entry(const Sequence& sequence, std::int64_t index, Ticket ticket) {
  const auto place = static_cast<std::int32_t>(index);
  const BlockId id = sequence.table.id_at(pages, place);
  const Generation generation = sequence.table.generation_at(pages, place);
  const std::span<const BlockId> ids(&id, 1);
  const std::span<const Generation> generations(&generation, 1);
  if (Status s = manager->retain(sequence.holder, ids, generations); !s) return s;
  return manager->release_after(ticket, sequence.holder, ids, generations);
}

void BlockTables::Impl::erase(SequenceId id, Sequence& sequence) noexcept {
  // The holder has no references left, so this cannot fail.
  static_cast<void>(manager->unregister_holder(sequence.holder));
  tokens -= sequence.length;
  sequences.erase(id);
}

Result<SequenceId> BlockTables::Impl::insert(const SequenceOptions& options,
                                             std::uint64_t parent_owner) {
  if (Status s = check_insert(options); !s) return s;
  const SequenceId id = sequences.new_id(sequences_ever + 1);  // a refused call uses no number up
  const std::uint64_t of_family = options.owner != 0 ? options.owner : parent_owner;
  const std::uint64_t owner = of_family != 0 ? of_family : id.value;
  const Result<HolderId> holder = manager->register_holder({.number = id.value,
                                                            .owner = owner,
                                                            .purpose = "sequence",
                                                            .since_ns = options.since_ns,
                                                            .deadline_ns = options.deadline_ns});
  if (!holder) return holder.status();
  Sequence& sequence = sequences.insert(id);
  sequence.holder = *holder;
  owners[SequenceTable::slot_of(id)] = owner;
  sequence.max_length = static_cast<std::int32_t>(
      options.max_length_tokens == 0 ? kMaxTokens : options.max_length_tokens);
  ++sequences_ever;
  if (prefix != nullptr) {
    prefix->begin(prefix_owner(sequence).slot, prefix->known_as(options.salt), options.extra_keys);
  }
  return id;
}

Result<BlockTables> BlockTables::create(BlockManager& manager, const BlockTablesOptions& given) {
  BlockTablesOptions options = given;
  if (Status s =
          check_option(Option::block_size_tokens, options.block_size_tokens, 1, kMaxBlockSize);
      !s) {
    return s;
  }
  if (Status s = check_option(Option::max_sequences, options.max_sequences, 1, kMaxSequences); !s) {
    return s;
  }
  if (Status s = check_option(Option::max_pins, options.max_pins, 0, kMaxSequences); !s) return s;
  if (Status s = check_option(Option::max_append_tokens, options.max_append_tokens, 1, kMaxTokens);
      !s) {
    return s;
  }
  if (Status s = check_option(Option::max_table_pages, options.max_table_pages, 0, kMaxTokens);
      !s) {
    return s;
  }
  if (Status s = Impl::Groups::check(manager, options); !s) return s;
  options.max_table_pages = std::min(table_pages(manager.num_blocks(), options), kMaxTokens);
  if (Status s = PrefixCache::prepare(options, manager); !s) return s;
  try {
    return BlockTables(std::make_unique<Impl>(manager, options));
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, static_cast<std::uint64_t>(options.max_table_pages), 0);
  }
}

BlockTables::BlockTables(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
BlockTables::BlockTables(BlockTables&&) noexcept = default;

BlockTables& BlockTables::operator=(BlockTables&& other) noexcept {
  BlockTables old(std::move(*this));  // releases the sequences that were here
  impl_ = std::move(other.impl_);
  return *this;
}

BlockTables::~BlockTables() {
  if (impl_ == nullptr) return;
  impl_->sequences.for_each(
      [this](SequenceId id, const Sequence&) { static_cast<void>(destroy(id)); });
  impl_->pins.for_each(
      [this](SequenceId, const Sequence& pin) { static_cast<void>(unpin(pin.holder)); });
  if (impl_->prefix != nullptr) impl_->prefix->give_back();
}

Result<SequenceId> BlockTables::fork(SequenceId parent_id, std::int64_t length,
                                     const SequenceOptions& options) {
  Impl& t = *impl_;
  const Sequence* parent = t.sequences.find(parent_id);
  if (parent == nullptr) return not_found(Resource::sequence, parent_id.value);
  if (Status s = Impl::check_imported(parent_id, *parent); !s) return s;
  if (Status s = check_range(Resource::sequence_length, length, 0, parent->length); !s) return s;
  if (options.max_length_tokens > 0 && length > options.max_length_tokens) {
    return too_long(parent_id, length, options.max_length_tokens);
  }
  if (Status s = t.check_prefix_options(options, Impl::Origin::forked); !s) return s;
  if (t.groups) return t.groups->fork(parent_id, length, options);
  const std::int64_t shared = t.blocks_for(length);
  if (Status s = t.check_pages_of_new(shared, parent_id.value); !s) return s;
  Result<SequenceId> id = t.insert(options, t.owners[SequenceTable::slot_of(parent_id)]);
  if (!id) return id;
  Sequence& child = *t.sequences.find(*id);
  if (Status status = t.share_blocks(*parent, child, 0, shared); !status) {
    static_cast<void>(destroy(*id));
    --t.sequences_ever;
    return status;
  }
  child.length = static_cast<std::int32_t>(length);
  child.filled_blocks = child.table.num_entries;
  t.tokens += length;
  t.place_tail(child);
  if (t.prefix != nullptr) t.fork_prefix(*t.sequences.find(parent_id), child);
  return id;
}

Status BlockTables::destroy(SequenceId id, Ticket ticket) {
  return destroy_many(std::span(&id, 1), ticket);
}

Status BlockTables::destroy_many(std::span<const SequenceId> ids, Ticket ticket) {
  Impl& t = *impl_;
  ++t.calls;
  std::int64_t released = 0;
  for (const SequenceId id : ids) {
    Sequence* sequence = t.sequences.find(id);
    if (sequence == nullptr) return not_found(Resource::sequence, id.value);
    if (std::exchange(sequence->call_stamp, t.calls) == t.calls) {
      return duplicate_argument(Resource::sequence, id.value);
    }
    released += sequence->table.num_entries;
    if (t.num_kept_tails != 0) released += t.num_kept_of(id);
  }
  if (t.groups) return t.groups->destroy_many(ids, ticket);
  if (Status status = t.check_ticket(ticket, released); !status) return status;
  for (const SequenceId id : ids) {
    Sequence& sequence = *t.sequences.find(id);
    if (t.prefix != nullptr) t.prefix->end(t.prefix_owner(sequence));
    if (Status status = t.release_entries(sequence, 0, ticket); !status) return status;
    if (t.num_kept_tails != 0) {
      if (Status status = t.release_kept(id, ticket); !status) return status;
    }
    t.erase(id, sequence);
  }
  return {};
}

Status BlockTables::set_deadline(SequenceId id, std::int64_t deadline_ns) {
  const Sequence* sequence = impl_->sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  return impl_->manager->set_deadline(sequence->holder, deadline_ns);
}

Status BlockTables::truncate(SequenceId id, std::int64_t length, Ticket ticket) {
  Impl& t = *impl_;
  Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (Status s = Impl::check_imported(id, *sequence); !s) return s;
  if (Status s = check_range(Resource::sequence_length, length, 0, sequence->length); !s) return s;
  if (t.groups) return t.groups->truncate(id, length, ticket);
  Sequence& s = *sequence;
  const auto cut = static_cast<std::int32_t>(s.length - length);
  const bool within_last_block =
      cut < t.block_size - s.room && s.table.num_entries == s.filled_blocks && s.length > 0;
  if (within_last_block && ticket == kNoTicket) [[likely]] {
    if (t.prefix != nullptr) t.prefix->cut(t.prefix_owner(s), length);
    s.length -= cut;
    s.room += cut;
    s.next_slot -= cut;
    t.tokens -= cut;
    return {};
  }
  const std::int64_t keep = t.blocks_for(length);
  const bool cuts_kept_block = cut > 0 && length % t.block_size != 0;
  const bool fences_kept_block = ticket != kNoTicket && cuts_kept_block;
  const std::int64_t fenced = s.table.num_entries - keep + (fences_kept_block ? 1 : 0);
  if (Status status = t.check_ticket(ticket, fenced); !status) return status;
  if (t.prefix != nullptr) t.prefix->cut(t.prefix_owner(s), length);
  if (fences_kept_block) {
    if (Status status = t.fence_entry(s, keep - 1, ticket); !status) return status;
  }
  if (Status status = t.release_entries(s, keep, ticket); !status) return status;
  s.length = static_cast<std::int32_t>(length);
  s.filled_blocks = static_cast<std::int32_t>(keep);
  s.mirrored_blocks = std::min(s.mirrored_blocks, s.filled_blocks);
  t.tokens -= cut;
  t.place_tail(s);
  return {};
}

}  // namespace kvarena
