#include "step/group_staging.hpp"

#include "step/group_rows.hpp"

#include <algorithm>
#include <atomic>

namespace kvarena {
namespace {

using kernels::StagedRow;
using kernels::StepShape;

/// Returns limit_exceeded when `count` is above the limit of `option`.
Status check_fits(Resource what, std::size_t count, std::int64_t limit, Option option) noexcept {
  if (count <= static_cast<std::uint64_t>(limit)) return {};
  return limit_exceeded(what, count, static_cast<std::uint64_t>(limit), option);
}

}  // namespace

GroupStaging::GroupStaging(const GroupTablesOptions& options, const GroupTablesMemory& plan,
                           std::byte* memory)
    : limits_(options.limits), max_sequences_(options.max_sequences) {
  const auto max_rows = static_cast<std::size_t>(options.limits.max_rows);
  for (std::size_t i = 0; i < options.parts.size(); ++i) {
    const GroupPartMemory& its = plan.parts[i];
    Part& part = parts_.emplace_back();
    part.table = options.parts[i].table;
    part.group = options.parts[i].group;
    part.shape = its.shape;
    part.ring = memory + its.ring;
    part.changes = LazyArray<Change>(static_cast<std::size_t>(its.shape.max_rows));
    part.sent = LazyArray<Sent>(max_rows);
    part.lengths = LazyArray<std::int32_t>(max_rows);
    if (group_of(i) == regions_.size()) regions_.emplace_back(its.shape, front_of(part.table));
  }
  for (const GroupStatesMemory& its : plan.states) {
    states_.emplace_back(its.shape, memory + its.ring);
  }
}

Status GroupStaging::check_counts(const AppendResult& appended) const noexcept {
  if (appended.rows.empty() && !appended.slots.empty()) {
    return failed_precondition(Resource::sequence);  // the tables do not report rows
  }
  if (Status s = check_fits(Resource::num_sequences, appended.rows.size(), limits_.max_rows,
                            Option::max_batch_rows);
      !s) {
    return s;
  }
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (Status s = states_[i].check(appended.states[i]); !s) return s;
  }
  const std::size_t num_tables = parts_.size() + states_.size();
  return check_fits(Resource::num_tokens, appended.slots.size() / num_tables, limits_.max_tokens,
                    Option::max_step_tokens);
}

/// Returns the entry of a block in its table. Each chunk begins at a granule.
std::int32_t GroupStaging::entry_of(const Part& part, std::int32_t block) noexcept {
  const std::int64_t padded = padded_chunk_blocks(part.table);
  if (padded == 0) return block;
  const std::int64_t of_chunk = part.table.limit_tokens / part.table.block_size_tokens;
  return static_cast<std::int32_t>(block / of_chunk * padded + block % of_chunk);
}

/// Notes a row of which no table changed.
void GroupStaging::pass_table(const BlockTables& tables, const AppendedRow& row, std::size_t index,
                              std::size_t number) noexcept {
  Part& part = parts_[number];
  std::int32_t tokens = row.length_tokens;
  if (part.table.kind == PagedKind::cross) {
    tokens = tables.table_changes(row.slot, static_cast<std::int32_t>(number)).num_tokens;
  }
  part.lengths[index] = tokens;
  for_each_row(part.table, tokens, row.num_new_tokens, [&](const GroupRow&) { ++part.num_rows; });
}

/// Collects what changed in one table of a row. A chunk without new tokens is not sent: its blocks
/// stay changed until a later step comes back to it, or releases it.
Status GroupStaging::collect_table(const TableChanges& its, const AppendedRow& row,
                                   std::size_t index, std::size_t number) {
  Part& part = parts_[number];
  part.lengths[index] = its.num_tokens;
  const std::int32_t first_row = part.num_rows;
  std::int32_t first_sent = its.num_blocks;
  for_each_row(part.table, its.num_tokens, row.num_new_tokens, [&](const GroupRow& at) {
    const std::int32_t number_of_row = part.num_rows++;
    if (its.first_changed == its.num_blocks) return;
    const bool is_cross = part.table.kind == PagedKind::cross;
    if (is_cross && number_of_row > first_row) return;
    const std::int64_t size = part.table.block_size_tokens;
    const auto end = static_cast<std::int32_t>(at.first_block + (at.length + size - 1) / size);
    const auto first = std::max(its.first_changed, static_cast<std::int32_t>(at.first_block));
    if (first >= end) return;
    first_sent = std::min(first_sent, first);
    part.num_changed_blocks += end - first;
    part.changes[part.num_changes++] = {number_of_row, row.slot, first, end - first};
  });
  if (its.first_changed < its.num_blocks && first_sent == its.first_changed) {
    part.sent[part.num_sent++] = {row.slot, its.first_changed};
  }
  if (part.num_changed_blocks <= part.shape.max_changes) return {};
  return limit_exceeded(Resource::block, static_cast<std::uint64_t>(part.num_changed_blocks),
                        static_cast<std::uint64_t>(part.shape.max_changes),
                        Option::max_batch_blocks, static_cast<std::uint64_t>(row.slot));
}

/// Collects the changes of a row in the parts first .. end - 1 of a group, and gives its sequence a
/// region when it has none or has outgrown it.
Status GroupStaging::collect_row(BlockTables& tables, const AppendedRow& row, std::size_t index,
                                 std::size_t first, std::size_t end) {
  TableRegions& regions = regions_[group_of(first)];
  const auto slot = static_cast<std::uint64_t>(row.slot);
  TableChanges changes = tables.table_changes(row.slot, static_cast<std::int32_t>(first));
  const std::int32_t blocks = changes.num_blocks;
  const std::int32_t entries = blocks == 0 ? 0 : entry_of(parts_[first], blocks - 1) + 1;
  std::int32_t first_kept = changes.first_kept;
  for (std::size_t part = first + 1; part < end; ++part) {
    const TableChanges its = tables.table_changes(row.slot, static_cast<std::int32_t>(part));
    first_kept = std::min(first_kept, its.first_kept);
  }
  first_kept = std::min(entry_of(parts_[first], first_kept), entries);
  const std::int32_t most = parts_[first].shape.max_blocks_a_row;
  if (entries > most) {
    return limit_exceeded(Resource::block, static_cast<std::uint64_t>(entries),
                          static_cast<std::uint64_t>(most), Option::max_sequence_tokens, slot);
  }
  const bool is_placed = regions.fits(row.slot, entries, first_kept);
  if (!is_placed) regions.place(row.slot, entries, first_kept);
  for (std::size_t part = first; part < end; ++part) {
    const auto number = static_cast<std::int32_t>(part);
    if (!is_placed) tables.unmirror(row.slot, number, 0);
    if (!is_placed || part > first) changes = tables.table_changes(row.slot, number);
    if (Status s = collect_table(changes, row, index, part); !s) return s;
  }
  return {};
}

/// Collects the changes of all rows in the parts of the group that begins with part `first`. Rows
/// without changes are passed quickly.
Status GroupStaging::collect_rows(BlockTables& tables, std::span<const AppendedRow> rows,
                                  std::size_t first) {
  const TableRegions& regions = regions_[group_of(first)];
  std::size_t end = first;
  for (; end < parts_.size() && parts_[end].group == parts_[first].group; ++end) {
    parts_[end].num_changes = parts_[end].num_sent = 0;
    parts_[end].num_changed_blocks = 0;
    parts_[end].num_rows = 0;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int32_t slot = rows[i].slot;
    if (slot < 0 || slot >= max_sequences_) {
      return limit_exceeded(Resource::num_sequences, static_cast<std::uint64_t>(slot) + 1,
                            static_cast<std::uint64_t>(max_sequences_), Option::max_sequences,
                            static_cast<std::uint64_t>(slot));
    }
    if (rows[i].num_changed_blocks == 0 && !lacks_more_ && regions.has(slot)) [[likely]] {
      for (std::size_t part = first; part < end; ++part) pass_table(tables, rows[i], i, part);
    } else if (Status s = collect_row(tables, rows[i], i, first, end); !s) {
      return s;
    }
  }
  return {};
}

/// When all regions are dropped on the way, rows that were passed already have none, so it collects
/// once more. Then all rows fit (table_regions.cpp), unless the step is larger than the limits.
Status GroupStaging::collect_group(BlockTables& tables, std::span<const AppendedRow> rows,
                                   std::size_t first) {
  const TableRegions& regions = regions_[group_of(first)];
  const std::uint64_t before = regions.num_restarts();
  Status status = collect_rows(tables, rows, first);
  if (!status || regions.num_restarts() == before) return status;
  lacks_more_ = true;
  const std::uint64_t restarted = regions.num_restarts();
  status = collect_rows(tables, rows, first);
  if (!status || regions.num_restarts() == restarted) return status;
  const auto room = static_cast<std::uint64_t>(parts_[first].shape.max_changes);
  return limit_exceeded(Resource::block, room + 1, room, Option::max_batch_blocks);
}

/// Writes the collected changes, the rows and the copies of a part, and last the serial number.
void GroupStaging::write(BlockTables& tables, const AppendResult& appended,
                         std::size_t number) noexcept {
  Part& part = parts_[number];
  std::byte* const slot = slot_of(part);
  auto& header = *reinterpret_cast<StagedHeader*>(slot);
  const std::atomic_ref<std::uint64_t> serial(header.serial);
  // The slot has no step while it is being written. The exchange keeps the later writes behind it.
  serial.exchange(0, std::memory_order_acq_rel);
  auto* const rows = reinterpret_cast<StagedRow*>(slot + StepShape::kRowsOffset);
  const std::int64_t padded = padded_chunk_blocks(part.table);
  const std::int64_t of_chunk = part.table.limit_tokens / part.table.block_size_tokens;
  StagedRow* next = rows;
  for (std::size_t i = 0; i < appended.rows.size(); ++i) {
    const AppendedRow& row = appended.rows[i];
    const std::int32_t granule = first_granule(number, row.slot);
    for_each_row(part.table, part.lengths[i], row.num_new_tokens, [&](const GroupRow& its) {
      const std::int64_t entry = padded == 0 ? 0 : its.first_block / of_chunk * padded;
      *next++ = {.granule = granule + static_cast<std::int32_t>(entry / StepShape::kGranule),
                 .seq_len = its.length,
                 .num_new = its.num_new,
                 .num_changed = 0};
    });
  }
  auto* changed = reinterpret_cast<BlockId*>(slot + part.shape.changes_offset());
  const auto group = static_cast<std::int32_t>(number);
  for (std::size_t i = 0; i < part.num_changes; ++i) {
    const Change& change = part.changes[i];
    rows[change.row].num_changed = change.count;
    const auto count = static_cast<std::size_t>(change.count);
    tables.copy_entries(change.slot, group, change.first_block, std::span(changed, count));
    changed += count;
  }
  for (std::size_t i = 0; i < part.num_sent; ++i) {
    const std::int32_t at = part.sent[i].slot;
    tables.set_mirrored(at, group, tables.table_changes(at, group).num_blocks);
  }
  auto* const copies = reinterpret_cast<BlockCopy*>(slot + part.shape.copies_offset());
  part.num_copies = 0;
  for (std::size_t i = 0; i < appended.copies.size(); ++i) {
    if (appended.copy_groups[i] == group) copies[part.num_copies++] = appended.copies[i];
  }
  header.num_rows = part.num_rows;
  header.num_copies = part.num_copies;
  header.follows = launched_serial_;
  serial.store(serial_, std::memory_order_release);
}

Status GroupStaging::stage(BlockTables& tables, const AppendResult& appended) {
  if (is_staged_) withdraw(tables);
  Status status = check_counts(appended);
  for (std::size_t part = 0; part < parts_.size() && status; ++part) {
    if (part > 0 && group_of(part) == group_of(part - 1)) continue;
    status = collect_group(tables, appended.rows, part);
  }
  if (!status) {
    lacks_more_ = true;
    return status;
  }
  ++serial_;
  for (std::size_t part = 0; part < parts_.size(); ++part) write(tables, appended, part);
  for (std::size_t i = 0; i < states_.size(); ++i) {
    states_[i].write(slot_, appended.states[i], appended,
                     static_cast<std::int32_t>(parts_.size() + i), serial_, launched_serial_);
  }
  is_staged_ = true;
  lacks_more_ = false;
  return {};
}

kernels::StepWord GroupStaging::expected() const noexcept {
  return is_staged_ ? kernels::step_word(serial_, slot_) : 0;
}

void GroupStaging::advance() noexcept {
  if (!is_staged_) return;
  is_staged_ = false;
  launched_serial_ = serial_;
  slot_ = (slot_ + 1) % limits_.steps_in_flight;
}

/// The device will not get the changes of the staged step, so they count as changed again.
void GroupStaging::unmirror_sent(BlockTables& tables) noexcept {
  for (std::size_t number = 0; number < parts_.size(); ++number) {
    Part& part = parts_[number];
    for (std::size_t i = 0; i < part.num_sent; ++i) {
      tables.unmirror(part.sent[i].slot, static_cast<std::int32_t>(number),
                      part.sent[i].first_block);
    }
    part.num_sent = 0;
  }
  lacks_more_ = true;
}

void GroupStaging::withdraw(BlockTables& tables) noexcept {
  if (!is_staged_) return;
  is_staged_ = false;
  // A later launch does not find the step, even if its word is still on the device.
  for (const Part& part : parts_) {
    auto& header = *reinterpret_cast<StagedHeader*>(slot_of(part));
    std::atomic_ref(header.serial).exchange(0, std::memory_order_acq_rel);
  }
  for (StateStaging& states : states_) states.withdraw(slot_);
  unmirror_sent(tables);
}

/// The next step follows the step that the device took last.
void GroupStaging::resync(BlockTables& tables, std::uint64_t taken_serial) noexcept {
  withdraw(tables);
  for (std::size_t number = 0; number < parts_.size(); ++number) {
    for (std::int32_t slot = 0; slot < max_sequences_; ++slot) {
      tables.unmirror(slot, static_cast<std::int32_t>(number), 0);
    }
  }
  lacks_more_ = true;
  launched_serial_ = taken_serial;
}

}  // namespace kvarena
