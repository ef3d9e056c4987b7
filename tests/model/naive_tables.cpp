#include "model/naive_tables.hpp"

#include <limits>

namespace kvarena::model {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

std::uint64_t raw(std::int64_t value) { return static_cast<std::uint64_t>(value); }

Status too_long(SequenceId id, std::int64_t length, std::int64_t maximum) {
  return {StatusCode::context_length_exceeded,
          Resource::sequence_length,
          Option::none,
          0,
          id.value,
          raw(length),
          raw(maximum)};
}

/// Pages of entries, and the directories above them until one page is left.
std::int64_t pages_for(std::int64_t entries) {
  std::int64_t pages = 0;
  while (entries > 0) {
    entries = (entries + BlockTables::kPageEntries - 1) / BlockTables::kPageEntries;
    pages += entries;
    if (entries == 1) break;
  }
  return pages;
}

std::int64_t maximum_of(const NaiveTables::Sequence& sequence) {
  return sequence.max_length == 0 ? kMaxTokens : sequence.max_length;
}

Status check_imported(SequenceId id, const NaiveTables::Sequence& sequence) {
  if (sequence.import_state == ImportState::none) return {};
  return failed_precondition(Resource::sequence, id.value,
                             static_cast<std::uint64_t>(sequence.import_state));
}

std::int64_t count_of(const std::vector<Handle>& handles) {
  return static_cast<std::int64_t>(handles.size());
}

}  // namespace

NaiveTables::NaiveTables(NaivePool& pool, const BlockTablesOptions& options,
                         std::int64_t total_pages)
    : pool_(pool),
      block_size_(options.block_size_tokens),
      max_sequences_(options.max_sequences),
      max_pins_(options.max_pins),
      max_append_tokens_(options.max_append_tokens),
      total_pages_(total_pages) {}

std::int64_t NaiveTables::blocks_for(std::int64_t tokens) const {
  return (tokens + block_size_ - 1) / block_size_;
}

// ---- life of a sequence -------------------------------------------------------------------------

Status NaiveTables::can_create(const SequenceOptions& options) const {
  if (options.max_length_tokens < 0 || options.max_length_tokens > kMaxTokens) {
    return invalid_option(Option::max_length_tokens, options.max_length_tokens, 0, kMaxTokens);
  }
  if (static_cast<std::int64_t>(sequences_.size()) >= max_sequences_) {
    return exhausted(Resource::sequence, 1, 0, 0, Option::max_sequences);
  }
  return pool_.can_register();
}

bool NaiveTables::adopt(SequenceId id, HolderId holder, const SequenceOptions& options) {
  const bool new_holder = pool_.adopt_holder(holder, {.number = id.value,
                                                      .purpose = "sequence",
                                                      .since_ns = options.since_ns,
                                                      .deadline_ns = options.deadline_ns});
  Sequence& sequence = sequences_[id];
  sequence.holder = holder;
  sequence.max_length = options.max_length_tokens;
  return new_holder && id != kNoSequence && ever_.insert(id).second;
}

Status NaiveTables::can_fork(SequenceId parent_id, std::int64_t length,
                             const SequenceOptions& options) const {
  const auto parent = sequences_.find(parent_id);
  if (parent == sequences_.end()) return not_found(Resource::sequence, parent_id.value);
  if (Status s = check_imported(parent_id, parent->second); !s) return s;
  if (length < 0 || length > parent->second.length) {
    return invalid_argument(Resource::sequence_length, length, 0, parent->second.length);
  }
  if (options.max_length_tokens > 0 && length > options.max_length_tokens) {
    return too_long(parent_id, length, options.max_length_tokens);
  }
  const std::int64_t needed = pages_for(blocks_for(length));
  if (needed > total_pages_ - pages_used()) {
    return exhausted(Resource::table_page, raw(needed), raw(total_pages_ - pages_used()),
                     parent_id.value, Option::max_table_pages);
  }
  return can_create(options);
}

bool NaiveTables::adopt_fork(SequenceId parent_id, std::int64_t length, SequenceId child_id,
                             HolderId holder, const SequenceOptions& options) {
  const bool fresh = adopt(child_id, holder, options);
  const std::vector<Handle>& blocks = sequences_.at(parent_id).blocks;
  Sequence& child = sequences_.at(child_id);
  child.blocks.assign(blocks.begin(), blocks.begin() + blocks_for(length));
  child.length = length;
  return pool_.retain(holder, child.blocks).is_ok() && fresh;
}

Status NaiveTables::destroy_many(std::span<const SequenceId> ids, Ticket ticket) {
  std::set<SequenceId> named;
  std::int64_t references = 0;
  for (const SequenceId id : ids) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
    if (!named.insert(id).second) return duplicate_argument(Resource::sequence, id.value);
    references += count_of(found->second.blocks);
  }
  if (Status s = check_ticket(ticket, references); !s) return s;
  for (const SequenceId id : ids) {
    Sequence& sequence = sequences_.at(id);
    give_up(sequence.holder, sequence.blocks, 0, ticket);
    static_cast<void>(pool_.unregister_holder(sequence.holder));
    sequences_.erase(id);
  }
  return {};
}

// ---- imports and pins ---------------------------------------------------------------------------

Status NaiveTables::can_import(std::int64_t num_tokens, const SequenceOptions& options,
                               Urgency urgency) {
  if (options.max_length_tokens < 0 || options.max_length_tokens > kMaxTokens) {
    return invalid_option(Option::max_length_tokens, options.max_length_tokens, 0, kMaxTokens);
  }
  if (num_tokens < 0 || num_tokens > kMaxTokens) {
    return invalid_argument(Resource::num_tokens, num_tokens, 0, kMaxTokens);
  }
  if (options.max_length_tokens > 0 && num_tokens > options.max_length_tokens) {
    return too_long(kNoSequence, num_tokens, options.max_length_tokens);
  }
  if (static_cast<std::int64_t>(sequences_.size()) >= max_sequences_) {
    return exhausted(Resource::sequence, 1, 0, 0, Option::max_sequences);
  }
  const std::int64_t blocks = blocks_for(num_tokens);
  if (Status s = pool_.check_available(blocks, urgency); !s) return s;
  if (pages_for(blocks) > total_pages_ - pages_used()) {
    return exhausted(Resource::table_page, raw(pages_for(blocks)), raw(total_pages_ - pages_used()),
                     0, Option::max_table_pages);
  }
  return can_create(options);
}

bool NaiveTables::adopt_import(std::int64_t num_tokens, SequenceId id, HolderId holder,
                               const SequenceOptions& options, Urgency urgency) {
  const bool fresh = adopt(id, holder, options);
  Sequence& sequence = sequences_.at(id);
  const Want want{holder, blocks_for(num_tokens)};
  const Result<Grant> grant = pool_.allocate(std::span(&want, 1), urgency);
  if (!grant) return false;
  sequence.blocks = grant->handles;
  sequence.length = num_tokens;
  sequence.import_state = ImportState::filling;
  for (const Handle& handle : sequence.blocks) {
    static_cast<void>(pool_.set_content(handle, BlockContent::being_written));
  }
  return fresh;
}

Status NaiveTables::check_waiting(SequenceId id) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
  const ImportState state = found->second.import_state;
  if (state == ImportState::filling) return {};
  return failed_precondition(Resource::sequence, id.value, static_cast<std::uint64_t>(state));
}

Status NaiveTables::publish_import(SequenceId id) {
  if (Status s = check_waiting(id); !s) return s;
  Sequence& sequence = sequences_.at(id);
  const std::vector<Handle> blocks(sequence.blocks.begin(),
                                   sequence.blocks.begin() + blocks_for(sequence.length));
  for (const Handle& handle : blocks) {
    if (pool_.content(handle.id) == BlockContent::failed) {
      return failed_precondition(Resource::block, raw(handle.id.value));
    }
  }
  for (const Handle& handle : blocks) {
    if (pool_.content(handle.id) != BlockContent::being_written) continue;
    static_cast<void>(pool_.set_content(handle, BlockContent::unwritten));
  }
  sequence.import_state = ImportState::none;
  return {};
}

Status NaiveTables::fail_import(SequenceId id) {
  if (Status s = check_waiting(id); !s) return s;
  Sequence& sequence = sequences_.at(id);
  sequence.import_state = ImportState::failed;
  for (std::int64_t i = 0; i < blocks_for(sequence.length); ++i) {
    static_cast<void>(
        pool_.set_content(sequence.blocks[static_cast<std::size_t>(i)], BlockContent::failed));
  }
  return {};
}

Status NaiveTables::can_pin(SequenceId id, const PinOptions& options) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
  if (Status s = check_imported(id, found->second); !s) return s;
  const std::int64_t filled = blocks_for(found->second.length);
  const std::int64_t first = options.first_block;
  if (first < 0 || first > filled) return invalid_argument(Resource::block_index, first, 0, filled);
  if (options.num_blocks < -1 || options.num_blocks > filled - first) {
    return invalid_argument(Resource::num_blocks, options.num_blocks, 0, filled - first);
  }
  const std::int64_t count = options.num_blocks == -1 ? filled - first : options.num_blocks;
  if (pages_for(count) > total_pages_ - pages_used()) {
    return exhausted(Resource::table_page, raw(pages_for(count)), raw(total_pages_ - pages_used()),
                     id.value, Option::max_table_pages);
  }
  if (static_cast<std::int64_t>(pins_.size()) >= max_pins_) {
    return exhausted(Resource::holder, 1, 0, 0, Option::max_pins);
  }
  return pool_.can_register();
}

bool NaiveTables::adopt_pin(SequenceId id, const PinOptions& options, HolderId holder,
                            std::uint64_t number) {
  const bool fresh = pool_.adopt_holder(holder, {.number = number,
                                                 .purpose = options.purpose,
                                                 .since_ns = options.since_ns,
                                                 .deadline_ns = options.deadline_ns});
  const Sequence& sequence = sequences_.at(id);
  const std::int64_t end = options.num_blocks == -1 ? blocks_for(sequence.length)
                                                    : options.first_block + options.num_blocks;
  Pin& pin = pins_[holder];
  pin.blocks.assign(sequence.blocks.begin() + options.first_block, sequence.blocks.begin() + end);
  return pool_.retain(holder, pin.blocks).is_ok() && fresh;
}

Status NaiveTables::unpin(HolderId holder, Ticket ticket) {
  const auto found = pins_.find(holder);
  if (found == pins_.end()) return not_found(Resource::holder, holder.value);
  if (Status s = check_ticket(ticket, count_of(found->second.blocks)); !s) return s;
  give_up(holder, found->second.blocks, 0, ticket);
  pins_.erase(found);
  return pool_.unregister_holder(holder);
}

Status NaiveTables::set_deadline(SequenceId id, std::int64_t deadline_ns) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
  return pool_.set_deadline(found->second.holder, deadline_ns);
}

// ---- growth -------------------------------------------------------------------------------------

Status NaiveTables::check_demands(std::span<const AppendDemand> demands) {
  std::set<SequenceId> named;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    failed_demand_ = static_cast<std::int64_t>(i);
    const SequenceId id = demands[i].sequence;
    const std::int32_t count = demands[i].num_tokens;
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
    if (!named.insert(id).second) return duplicate_argument(Resource::sequence, id.value);
    if (count < 0) return invalid_argument(Resource::num_tokens, count, 0, max_append_tokens_);
    const std::int64_t length = found->second.length + count;
    if (length > maximum_of(found->second)) {
      return too_long(id, length, maximum_of(found->second));
    }
    tokens += count;
    if (tokens > max_append_tokens_) {
      return limit_exceeded(Resource::num_tokens, static_cast<std::uint64_t>(tokens),
                            static_cast<std::uint64_t>(max_append_tokens_),
                            Option::max_append_tokens, id.value);
    }
    if (Status s = check_imported(id, found->second); !s) return s;
  }
  failed_demand_ = -1;
  return {};
}

bool NaiveTables::tail_is_shared(const Sequence& sequence,
                                 const std::map<BlockId, std::uint32_t>& given_up) const {
  if (sequence.length % block_size_ == 0) return false;
  const BlockId tail = sequence.blocks[static_cast<std::size_t>(sequence.length / block_size_)].id;
  const auto gone = given_up.find(tail);
  return pool_.claims(tail) - (gone == given_up.end() ? 0 : gone->second) > 1;
}

Result<Growth> NaiveTables::append(std::span<const AppendDemand> demands, Urgency urgency) {
  if (Status s = check_demands(demands); !s) return s;

  std::vector<bool> copies(demands.size());
  std::vector<Want> wants;
  std::map<BlockId, std::uint32_t> given_up;
  std::int64_t pages = 0;
  std::int64_t first_without_pages = -1;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const Sequence& sequence = sequences_.at(demands[i].sequence);
    const std::int64_t before = count_of(sequence.blocks);
    const std::int64_t after =
        std::max(before, blocks_for(sequence.length + demands[i].num_tokens));
    copies[i] = demands[i].num_tokens > 0 && tail_is_shared(sequence, given_up);
    if (copies[i]) {
      ++given_up[sequence.blocks[static_cast<std::size_t>(sequence.length / block_size_)].id];
    }
    wants.push_back({sequence.holder, after - before + (copies[i] ? 1 : 0), demands[i].urgency});
    pages += pages_for(after) - pages_for(before);
    if (first_without_pages < 0 && pages > total_pages_ - pages_used()) {
      first_without_pages = static_cast<std::int64_t>(i);
    }
  }
  if (first_without_pages >= 0 && NaivePool(pool_).allocate(wants, urgency).is_ok()) {
    failed_demand_ = first_without_pages;
    return exhausted(Resource::table_page, raw(pages), raw(total_pages_ - pages_used()),
                     demands[static_cast<std::size_t>(first_without_pages)].sequence.value,
                     Option::max_table_pages);
  }
  if (before_allocate) before_allocate(demands, wants);
  Result<Grant> grant = pool_.allocate(wants, urgency);
  if (!grant) {
    Status status = grant.status();
    for (std::size_t i = 0; i < demands.size(); ++i) {
      if (wants[i].holder.value != status.subject) continue;
      failed_demand_ = static_cast<std::int64_t>(i);
      status.subject = demands[i].sequence.value;
      break;
    }
    return status;
  }
  if (after_allocate) after_allocate(demands, wants, *grant);

  Growth growth;
  growth.new_blocks = count_of(grant->handles);
  std::size_t next = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    Sequence& sequence = sequences_.at(demands[i].sequence);
    std::int64_t taken = wants[i].count;
    if (copies[i]) {
      Handle& place = sequence.blocks[static_cast<std::size_t>(sequence.length / block_size_)];
      const Handle source = place;
      place = grant->handles[next++];
      --taken;
      growth.copies.push_back({source.id, place.id});
      static_cast<void>(pool_.release(sequence.holder, std::span(&source, 1)));
      ++copies_;
    }
    for (; taken > 0; --taken) sequence.blocks.push_back(grant->handles[next++]);
    for (std::int32_t token = 0; token < demands[i].num_tokens; ++token) {
      const std::int64_t index = sequence.length++;
      const Handle& block = sequence.blocks[static_cast<std::size_t>(index / block_size_)];
      growth.slots.push_back(block.id.value * block_size_ + index % block_size_);
    }
  }
  return growth;
}

Status NaiveTables::reserve_capacity(SequenceId id, std::int64_t capacity, Urgency urgency) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
  Sequence& sequence = found->second;
  if (sequence.import_state == ImportState::failed) return check_imported(id, sequence);
  if (capacity < 0 || capacity > kMaxTokens) {
    return invalid_argument(Resource::capacity, capacity, 0, kMaxTokens);
  }
  if (capacity > maximum_of(sequence)) return too_long(id, capacity, maximum_of(sequence));
  const std::int64_t before = count_of(sequence.blocks);
  const std::int64_t after = std::max(before, blocks_for(capacity));
  const Want want{sequence.holder, after - before};
  const std::int64_t pages = pages_for(after) - pages_for(before);
  if (pages > total_pages_ - pages_used() &&
      NaivePool(pool_).allocate(std::span(&want, 1), urgency).is_ok()) {
    return exhausted(Resource::table_page, raw(pages), raw(total_pages_ - pages_used()), id.value,
                     Option::max_table_pages);
  }
  const Result<Grant> grant = pool_.allocate(std::span(&want, 1), urgency);
  if (!grant) {
    Status status = grant.status();
    status.subject = id.value;
    return status;
  }
  sequence.blocks.insert(sequence.blocks.end(), grant->handles.begin(), grant->handles.end());
  return {};
}

Status NaiveTables::promise_capacity(SequenceId id, std::int64_t capacity) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
  const Sequence& sequence = found->second;
  if (sequence.import_state == ImportState::failed) return check_imported(id, sequence);
  if (capacity < 0 || capacity > kMaxTokens) {
    return invalid_argument(Resource::capacity, capacity, 0, kMaxTokens);
  }
  if (capacity > maximum_of(sequence)) return too_long(id, capacity, maximum_of(sequence));
  const std::int64_t missing = blocks_for(capacity) - count_of(sequence.blocks);
  Status status = pool_.reserve(sequence.holder, std::max<std::int64_t>(0, missing));
  if (!status) status.subject = id.value;
  return status;
}

Status NaiveTables::truncate(SequenceId id, std::int64_t length, Ticket ticket) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
  Sequence& sequence = found->second;
  if (Status s = check_imported(id, sequence); !s) return s;
  if (length < 0 || length > sequence.length) {
    return invalid_argument(Resource::sequence_length, length, 0, sequence.length);
  }
  const std::int64_t keep = blocks_for(length);
  const bool cuts_kept_block = length < sequence.length && length % block_size_ != 0;
  const bool fences_kept_block = ticket != kNoTicket && cuts_kept_block;
  const std::int64_t fenced = count_of(sequence.blocks) - keep + (fences_kept_block ? 1 : 0);
  if (Status s = check_ticket(ticket, fenced); !s) return s;
  if (fences_kept_block) {
    const Handle kept = sequence.blocks[static_cast<std::size_t>(keep - 1)];
    static_cast<void>(pool_.retain(sequence.holder, std::span(&kept, 1)));
    static_cast<void>(pool_.release_after(ticket, sequence.holder, std::span(&kept, 1)));
  }
  give_up(sequence.holder, sequence.blocks, static_cast<std::size_t>(keep), ticket);
  sequence.length = length;
  return {};
}

// ---- questions ----------------------------------------------------------------------------------

Result<SequenceInfo> NaiveTables::info(SequenceId id) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
  const Sequence& sequence = found->second;
  return SequenceInfo{.length_tokens = sequence.length,
                      .num_blocks = count_of(sequence.blocks),
                      .max_length_tokens = sequence.max_length,
                      .waste_tokens = count_of(sequence.blocks) * block_size_ - sequence.length,
                      .holder = sequence.holder,
                      .owner = 0,
                      .import_state = sequence.import_state};
}

Result<BlockId> NaiveTables::lookup(SequenceId id, std::int64_t index) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
  const std::int64_t count = count_of(found->second.blocks);
  if (index < 0 || index >= count) {
    return invalid_argument(Resource::block_index, index, 0, count - 1);
  }
  return found->second.blocks[static_cast<std::size_t>(index)].id;
}

Result<std::int64_t> NaiveTables::slot_of(SequenceId id, std::int64_t index) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return not_found(Resource::sequence, id.value);
  if (index < 0 || index >= found->second.length) {
    return invalid_argument(Resource::token_index, index, 0, found->second.length - 1);
  }
  const Handle& block = found->second.blocks[static_cast<std::size_t>(index / block_size_)];
  return block.id.value * block_size_ + index % block_size_;
}

TableStats NaiveTables::stats() const {
  TableStats stats;
  stats.sequences = static_cast<std::int64_t>(sequences_.size());
  for (const auto& [id, sequence] : sequences_) {
    stats.tokens += sequence.length;
    stats.entries += count_of(sequence.blocks);
    stats.waste_tokens += count_of(sequence.blocks) * block_size_ - sequence.length;
  }
  stats.pages_used = pages_used();
  stats.pages_total = total_pages_;
  stats.sequences_ever = ever_.size();
  stats.copies_on_write = copies_;
  stats.pins = static_cast<std::int64_t>(pins_.size());
  for (const auto& [holder, pin] : pins_) stats.pinned_entries += count_of(pin.blocks);
  return stats;
}

// ---- parts --------------------------------------------------------------------------------------

Status NaiveTables::check_ticket(Ticket ticket, std::int64_t references) const {
  if (ticket == kNoTicket) return {};
  if (!pool_.is_open(ticket)) return not_found(Resource::ticket, ticket.value);
  if (references > pool_.fence_entries_left()) {
    return exhausted(Resource::fence_entry, raw(references), raw(pool_.fence_entries_left()), 0,
                     Option::max_fence_entries);
  }
  return {};
}

std::int64_t NaiveTables::pages_used() const {
  std::int64_t pages = 0;
  for (const auto& [id, sequence] : sequences_) pages += pages_for(count_of(sequence.blocks));
  for (const auto& [holder, pin] : pins_) pages += pages_for(count_of(pin.blocks));
  return pages;
}

void NaiveTables::give_up(HolderId holder, std::vector<Handle>& blocks, std::size_t keep,
                          Ticket ticket) {
  while (blocks.size() > keep) {
    const Handle last = blocks.back();
    blocks.pop_back();
    static_cast<void>(ticket == kNoTicket
                          ? pool_.release(holder, std::span(&last, 1))
                          : pool_.release_after(ticket, holder, std::span(&last, 1)));
  }
}

}  // namespace kvarena::model
