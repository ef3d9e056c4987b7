#include "step/staging_ring.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>

namespace kvarena {
namespace {

using kernels::StagedHeader;
using kernels::StagedRow;
using kernels::StepShape;

// A row is staged as the tables report it.
static_assert(sizeof(StagedRow) == sizeof(AppendedRow) &&
              offsetof(StagedRow, slot) == offsetof(AppendedRow, slot) &&
              offsetof(StagedRow, seq_len) == offsetof(AppendedRow, length_tokens) &&
              offsetof(StagedRow, num_new) == offsetof(AppendedRow, num_new_tokens) &&
              offsetof(StagedRow, num_changed) == offsetof(AppendedRow, num_changed_blocks));

Status check_fits(std::size_t count, std::int32_t limit) noexcept {
  if (count <= static_cast<std::size_t>(limit)) return {};
  return exhausted(Resource::workspace, count, static_cast<std::uint64_t>(limit));
}

}  // namespace

StagingRing::StagingRing(std::byte* memory, const StepShape& shape)
    : memory_(memory), shape_(shape), changes_(static_cast<std::size_t>(shape.max_rows)) {}

/// The step that was staged is not to be launched: the device will not have got its changes.
void StagingRing::withdraw(BlockTables& tables) noexcept {
  for (std::size_t i = 0; i < num_changes_; ++i) {
    tables.unmirror(changes_[i].slot, changes_[i].first_block);
  }
}

Status StagingRing::collect_change(const AppendedRow& row, std::int32_t index,
                                   std::int32_t changed) {
  const std::int64_t blocks =
      (std::int64_t{row.length_tokens} + shape_.block_size - 1) / shape_.block_size;
  const auto subject = static_cast<std::uint64_t>(row.slot);
  if (changed > blocks) return failed_precondition(Resource::sequence, subject);
  if (row.slot >= shape_.max_sequences) {
    return exhausted(Resource::workspace, subject + 1,
                     static_cast<std::uint64_t>(shape_.max_sequences), subject);
  }
  if (blocks > shape_.max_blocks_a_row) {
    return exhausted(Resource::workspace, static_cast<std::uint64_t>(blocks),
                     static_cast<std::uint64_t>(shape_.max_blocks_a_row), subject);
  }
  num_changed_blocks_ += changed;
  if (num_changed_blocks_ > shape_.max_changes) {
    return exhausted(Resource::workspace, static_cast<std::uint64_t>(num_changed_blocks_),
                     static_cast<std::uint64_t>(shape_.max_changes), subject);
  }
  changes_[num_changes_++] = {index, row.slot, static_cast<std::int32_t>(blocks) - changed,
                              changed};
  return {};
}

/// Which rows have changed entries. A row without any has been staged before, so it fits.
Status StagingRing::collect_changes(const BlockTables& tables, const AppendResult& appended) {
  num_changes_ = 0;
  num_changed_blocks_ = 0;
  if (appended.rows.empty() && !appended.slots.empty()) {
    return failed_precondition(Resource::sequence);  // tables that report no rows
  }
  if (Status s = check_fits(appended.rows.size(), shape_.max_rows); !s) return s;
  if (Status s = check_fits(appended.copies.size(), shape_.max_rows); !s) return s;
  if (Status s = check_fits(appended.slots.size(), shape_.max_tokens); !s) return s;
  std::int32_t index = -1;
  for (const AppendedRow& row : appended.rows) {
    ++index;
    if (row.num_changed_blocks == 0 && !is_staged_) [[likely]]
      continue;
    const std::int32_t changed = tables.changed_blocks(row.slot);
    // Withdrawn changes come on top of what the append reported.
    if (is_staged_ ? changed < row.num_changed_blocks : changed != row.num_changed_blocks) {
      return failed_precondition(Resource::sequence, static_cast<std::uint64_t>(row.slot));
    }
    if (changed == 0) continue;
    if (Status s = collect_change(row, index, changed); !s) return s;
  }
  return {};
}

void StagingRing::write(BlockTables& tables, const AppendResult& appended) noexcept {
  std::byte* const slot = memory_ + slot_ * shape_.slot_bytes();
  auto& header = *reinterpret_cast<StagedHeader*>(slot);
  const std::atomic_ref<std::uint64_t> serial(header.serial);
  // No step is here while it is being written: what follows stays behind this exchange.
  serial.exchange(0, std::memory_order_acq_rel);
  auto* const rows = reinterpret_cast<StagedRow*>(slot + StepShape::kRowsOffset);
  if (!appended.rows.empty()) {
    std::memcpy(static_cast<void*>(rows), appended.rows.data(), appended.rows.size_bytes());
  }
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
  if (is_staged_) withdraw(tables);
  if (Status status = collect_changes(tables, appended); !status) {
    num_changes_ = 0;  // withdrawn, or never staged
    return status;
  }
  write(tables, appended);
  is_staged_ = true;
  return {};
}

void StagingRing::advance() noexcept {
  if (!is_staged_) return;
  is_staged_ = false;
  launched_serial_ = serial_;
  slot_ = (slot_ + 1) % shape_.steps_in_flight;
}

}  // namespace kvarena
