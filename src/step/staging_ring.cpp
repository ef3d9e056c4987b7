#include "step/staging_ring.hpp"

#include <algorithm>
#include <atomic>
#include <span>

namespace kvarena {
namespace {

using kernels::StagedRow;
using kernels::StepShape;

/// Returns limit_exceeded when `count` is above the limit of `option`.
Status check_fits(Resource what, std::size_t count, std::int32_t limit, Option option) noexcept {
  if (count <= static_cast<std::size_t>(limit)) return {};
  return limit_exceeded(what, count, static_cast<std::uint64_t>(limit), option);
}

}  // namespace

StagingRing::StagingRing(std::byte* memory, const StepShape& shape)
    : memory_(memory),
      shape_(shape),
      regions_(shape),
      changes_(static_cast<std::size_t>(shape.max_rows)) {}

StagingRing::StagedHeader& StagingRing::header() noexcept {
  return *reinterpret_cast<StagedHeader*>(memory_ + slot_ * shape_.slot_bytes());
}

/// The device will not get the changes of the staged step, so they count as changed again.
void StagingRing::unmirror_changes(BlockTables& tables) noexcept {
  for (std::size_t i = 0; i < num_changes_; ++i) {
    tables.unmirror(changes_[i].slot, changes_[i].first_block);
  }
  num_changes_ = 0;
  lacks_more_ = true;
}

/// Checks the numbers of rows, copies and tokens against the ring's limits.
Status StagingRing::check_counts(const AppendResult& appended) const noexcept {
  if (appended.rows.empty() && !appended.slots.empty()) {
    return failed_precondition(Resource::sequence);  // the tables do not report rows
  }
  if (Status s = check_fits(Resource::num_sequences, appended.rows.size(), shape_.max_rows,
                            Option::max_batch_rows);
      !s)
    return s;
  if (Status s = check_fits(Resource::num_sequences, appended.copies.size(), shape_.max_rows,
                            Option::max_batch_rows);
      !s)
    return s;
  return check_fits(Resource::num_tokens, appended.slots.size(), shape_.max_tokens,
                    Option::max_step_tokens);
}

/// Collects the changes of a row, and gives it a region when it has none or has outgrown it.
Status StagingRing::collect_row(BlockTables& tables, const AppendedRow& row, std::int32_t index) {
  const auto subject = static_cast<std::uint64_t>(row.slot);
  std::int32_t changed = tables.changed_blocks(row.slot);
  const auto blocks = static_cast<std::int32_t>(
      (std::int64_t{row.length_tokens} + shape_.block_size - 1) / shape_.block_size);
  const bool is_reported =
      lacks_more_ ? changed >= row.num_changed_blocks : changed == row.num_changed_blocks;
  if (!is_reported || changed > blocks) return failed_precondition(Resource::sequence, subject);
  if (blocks > shape_.max_blocks_a_row) {
    return limit_exceeded(Resource::block, static_cast<std::uint64_t>(blocks),
                          static_cast<std::uint64_t>(shape_.max_blocks_a_row),
                          Option::max_sequence_tokens, subject);
  }
  if (!regions_.fits(row.slot, blocks)) {
    regions_.place(row.slot, blocks);
    tables.unmirror(row.slot, 0);
    changed = tables.changed_blocks(row.slot);
    if (changed != blocks) return failed_precondition(Resource::sequence, subject);
  }
  if (changed == 0) return {};
  num_changed_blocks_ += changed;
  if (num_changed_blocks_ > shape_.max_changes) {
    return limit_exceeded(Resource::block, static_cast<std::uint64_t>(num_changed_blocks_),
                          static_cast<std::uint64_t>(shape_.max_changes), Option::max_batch_blocks,
                          subject);
  }
  changes_[num_changes_++] = {index, row.slot, blocks - changed, changed};
  return {};
}

/// Collects the changes of all rows. Rows without changes are passed quickly.
Status StagingRing::collect_rows(BlockTables& tables, std::span<const AppendedRow> rows) {
  num_changes_ = 0;
  num_changed_blocks_ = 0;
  std::int32_t index = -1;
  for (const AppendedRow& row : rows) {
    ++index;
    const auto slot = static_cast<std::uint32_t>(row.slot);
    if (slot >= static_cast<std::uint32_t>(shape_.max_sequences)) {
      return limit_exceeded(Resource::num_sequences, std::uint64_t{slot} + 1,
                            static_cast<std::uint64_t>(shape_.max_sequences), Option::max_sequences,
                            slot);
    }
    if (row.num_changed_blocks == 0 && !lacks_more_ && regions_.has(row.slot)) [[likely]]
      continue;
    if (Status s = collect_row(tables, row, index); !s) return s;
  }
  return {};
}

/// Collects the changes of all rows and gives each row a region. When all regions are dropped on
/// the way, rows that were passed already have none, so it collects once more. Then all rows fit
/// (table_regions.cpp), unless the step is larger than the limits.
Status StagingRing::collect_changes(BlockTables& tables, std::span<const AppendedRow> rows) {
  const std::uint64_t before = regions_.num_restarts();
  Status status = collect_rows(tables, rows);
  if (!status || regions_.num_restarts() == before) return status;
  lacks_more_ = true;
  const std::uint64_t restarted = regions_.num_restarts();
  status = collect_rows(tables, rows);
  if (!status || regions_.num_restarts() == restarted) return status;
  const auto room = static_cast<std::uint64_t>(shape_.max_changes);
  return limit_exceeded(Resource::block, room + 1, room, Option::max_batch_blocks);
}

/// Writes the collected changes, the rows and the copies into the slot, and last the serial number.
void StagingRing::write(BlockTables& tables, const AppendResult& appended) noexcept {
  std::byte* const slot = memory_ + slot_ * shape_.slot_bytes();
  StagedHeader& header = this->header();
  const std::atomic_ref<std::uint64_t> serial(header.serial);
  // The slot has no step while it is being written. The exchange keeps the later writes behind it.
  serial.exchange(0, std::memory_order_acq_rel);
  auto* const rows = reinterpret_cast<StagedRow*>(slot + StepShape::kRowsOffset);
  std::transform(appended.rows.begin(), appended.rows.end(), rows, [&](const AppendedRow& row) {
    return StagedRow{.granule = regions_.first_granule(row.slot),
                     .seq_len = row.length_tokens,
                     .num_new = row.num_new_tokens,
                     .num_changed = 0};
  });
  auto* changed = reinterpret_cast<BlockId*>(slot + shape_.changes_offset());
  for (std::size_t i = 0; i < num_changes_; ++i) {
    const Change& change = changes_[i];
    rows[change.row].num_changed = change.count;
    const auto count = static_cast<std::size_t>(change.count);
    static_cast<void>(tables.mirror_changes(change.slot, std::span(changed, count)));
    changed += count;
  }
  std::copy(appended.copies.begin(), appended.copies.end(),
            reinterpret_cast<BlockCopy*>(slot + shape_.copies_offset()));
  header.num_rows = static_cast<std::int32_t>(appended.rows.size());
  header.num_copies = static_cast<std::int32_t>(appended.copies.size());
  header.follows = launched_serial_;
  serial.store(++serial_, std::memory_order_release);
}

Status StagingRing::stage(BlockTables& tables, const AppendResult& appended) {
  if (is_staged_) unmirror_changes(tables);
  Status status = check_counts(appended);
  if (status) status = collect_changes(tables, appended.rows);
  if (!status) {
    num_changes_ = 0;  // nothing of the step has been staged
    lacks_more_ = true;
    return status;
  }
  write(tables, appended);
  is_staged_ = true;
  lacks_more_ = false;
  return {};
}

kernels::StepWord StagingRing::expected() const noexcept {
  return is_staged_ ? kernels::step_word(serial_, slot_) : 0;
}

void StagingRing::advance() noexcept {
  if (!is_staged_) return;
  is_staged_ = false;
  launched_serial_ = serial_;
  slot_ = (slot_ + 1) % shape_.steps_in_flight;
}

void StagingRing::withdraw(BlockTables& tables) noexcept {
  if (!is_staged_) return;
  is_staged_ = false;
  // A later launch does not find the step, even if its word is still on the device.
  std::atomic_ref(header().serial).exchange(0, std::memory_order_acq_rel);
  unmirror_changes(tables);
}

/// The next step follows the step that the device took last.
void StagingRing::resync(BlockTables& tables, std::uint64_t taken_serial) noexcept {
  withdraw(tables);
  for (std::int32_t slot = 0; slot < shape_.max_sequences; ++slot) tables.unmirror(slot, 0);
  lacks_more_ = true;
  launched_serial_ = taken_serial;
}

}  // namespace kvarena
