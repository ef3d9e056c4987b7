#include "cache/scrub_planner.hpp"

#include "blocktable/sequence_table.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvarena {

using kernels::BlockScrub;

namespace {

// What the leading tokens of a block without a writer say.
constexpr std::uint16_t kUnknown = 0;
constexpr std::uint16_t kClean = 1;  // it was cleared, and nobody has written in it since

/// The blocks of an encoder's tokens.
std::int64_t encoder_blocks(const ScrubBlocks& blocks) noexcept {
  return (blocks.max_encoder_tokens + blocks.block_size_tokens - 1) / blocks.block_size_tokens;
}

}  // namespace

ScrubPlanner::ScrubPlanner(Scrub mode, const ScrubBlocks& blocks, const StepLimits& limits,
                           PageWriters* pages)
    : mode_(mode),
      blocks_(blocks),
      pages_(pages),
      block_size_(blocks.block_size_tokens),
      shift_(std::countr_zero(static_cast<std::uint32_t>(block_size_))),
      is_power_of_two_(std::has_single_bit(static_cast<std::uint32_t>(block_size_))),
      writers_(static_cast<std::size_t>(blocks.num_ids)),
      foreign_tokens_(static_cast<std::size_t>(blocks.num_ids)),
      copies_(static_cast<std::size_t>(limits.max_rows)),
      clears_(static_cast<std::size_t>(max_clears(blocks, limits))),
      seen_(static_cast<std::size_t>(blocks.max_sequences)),
      entered_(static_cast<std::size_t>(blocks.max_sequences > 0 ? blocks.num_ids : 0)),
      encoder_blocks_(
          static_cast<std::size_t>(blocks.max_sequences > 0 ? max_clears(blocks, limits) : 0)) {
  if (blocks.max_sequences > 0) encoders_.reserve(static_cast<std::size_t>(limits.max_rows));
}

std::int64_t ScrubPlanner::host_bytes(const ScrubBlocks& blocks,
                                      const StepLimits& limits) noexcept {
  constexpr auto kWriterBytes =
      static_cast<std::int64_t>(sizeof(std::uint64_t) + sizeof(std::uint16_t));
  constexpr auto kEntryBytes = static_cast<std::int64_t>(sizeof(BlockScrub));
  const std::int64_t own =
      blocks.num_ids * kWriterBytes + (limits.max_rows + max_clears(blocks, limits)) * kEntryBytes;
  if (blocks.max_sequences == 0) return own;
  return own +
         (blocks.max_sequences + limits.max_rows) *
             static_cast<std::int64_t>(sizeof(std::uint64_t)) +
         blocks.num_ids * static_cast<std::int64_t>(sizeof(std::uint32_t)) +
         max_clears(blocks, limits) * static_cast<std::int64_t>(sizeof(BlockId));
}

std::int64_t ScrubPlanner::max_clears(const ScrubBlocks& blocks,
                                      const StepLimits& limits) noexcept {
  if (blocks.max_encoder_tokens > 0) return limits.max_rows * encoder_blocks(blocks);
  // A row's old last block, and the blocks that its tokens enter; the last of these may be filled
  // only in part.
  return limits.max_tokens / blocks.block_size_tokens + 2 * std::int64_t{limits.max_rows};
}

void ScrubPlanner::note_fork(const SequenceInfo& parent, const SequenceInfo& child) noexcept {
  if (mode_ == Scrub::always || parent.owner != child.owner) has_inherited_tails_ = true;
}

void ScrubPlanner::note_unknown(BlockId block) noexcept {
  writer_of(block) = 0;
  foreign_of(block) = kUnknown;
}

void ScrubPlanner::note_import(BlockId block, Generation generation) noexcept {
  has_inherited_tails_ = true;
  if (pages_ != nullptr) {
    const std::int64_t page = block.value / blocks_.ids_per_page;
    const std::int64_t slot = block.value % blocks_.ids_per_page / blocks_.ids_per_block;
    if (pages_->note_import(page, blocks_.part, (slot + 1) * blocks_.block_bytes)) {
      set_page(page, kUnknown);
    }
  }
  note_unknown(block);
  if (blocks_.max_sequences > 0) note_entered(block, generation);
}

/// All blocks of a page have the same content.
void ScrubPlanner::set_page(std::int64_t page, std::uint16_t content) noexcept {
  const std::int64_t first = page * blocks_.ids_per_page;
  std::fill_n(writers_.data() + first, blocks_.ids_per_page, 0);
  std::fill_n(foreign_tokens_.data() + first, blocks_.ids_per_page, content);
}

/// The step writes in the block. If its page was another part's, the step clears all of it.
void ScrubPlanner::enter(BlockId block) noexcept {
  if (pages_ == nullptr) return;
  const std::int64_t page = block.value / blocks_.ids_per_page;
  if (pages_->take(page, blocks_.part)) set_page(page, kClean);
}

/// Whether nobody has written in the block since its page was cleared.
bool ScrubPlanner::is_clean(BlockId block) const noexcept {
  const auto at = static_cast<std::size_t>(block.value);
  return writers_[at] == 0 && foreign_tokens_[at] == kClean;
}

/// Returns whose content a row's tokens are. In mode `always` every sequence counts as its own
/// owner.
std::uint64_t ScrubPlanner::owner_of(const BlockTables& tables, Row& row) const noexcept {
  if (mode_ == Scrub::always) return row.sequence.value;
  if (row.owner == 0) row.owner = tables.info(row.sequence)->owner;
  return row.owner;
}

/// Adds a clear behind `kept_tokens` and notes the new writer.
void ScrubPlanner::clear(BlockId block, std::int32_t kept_tokens, std::uint64_t owner) noexcept {
  clears_[num_clears_++] = {block, block, kept_tokens};
  foreign_of(block) = static_cast<std::uint16_t>(kept_tokens);
  writer_of(block) = owner;
}

ScrubPlan ScrubPlanner::planned() const noexcept {
  return {std::span(copies_.data(), num_copies_), std::span(clears_.data(), num_clears_)};
}

/// Plans the row's old last block, which keeps `kept` tokens. The sequence continues in a copy or
/// in place.
void ScrubPlanner::plan_tail(const BlockTables& tables, Row& row, BlockId block, std::int32_t kept,
                             std::span<const BlockCopy> copies) noexcept {
  // The copies are in the order of the demands.
  if (num_copies_ < copies.size() && copies[num_copies_].target == block) {
    copies_[num_copies_] = {copies[num_copies_].source, block, kept};
    const BlockId source = copies[num_copies_++].source;
    const std::uint64_t owner = owner_of(tables, row);
    enter(block);
    foreign_of(block) = writer_of(source) != owner
                            ? static_cast<std::uint16_t>(kept)
                            : std::min(foreign_of(source), static_cast<std::uint16_t>(kept));
    writer_of(block) = owner;
    return;
  }
  const std::uint64_t owner = owner_of(tables, row);
  if (writer_of(block) != owner || foreign_of(block) > kept) clear(block, kept, owner);
}

/// Clears a block that a row's tokens enter, unless all that it holds is the owner's.
void ScrubPlanner::clear_entered(const BlockTables& tables, Row& row, BlockId block) noexcept {
  const std::uint64_t owner = owner_of(tables, row);
  enter(block);
  if (is_clean(block)) {
    writer_of(block) = owner;
    foreign_of(block) = 0;
  } else if (mode_ == Scrub::always || writer_of(block) != owner || foreign_of(block) > 0) {
    clear(block, 0, owner);
  }
}

/// A row has an old last block, which plan_tail handles, and blocks that its tokens enter.
ScrubPlan ScrubPlanner::plan(const BlockTables& tables, std::span<const AppendDemand> demands,
                             std::span<const AppendedRow> rows, const std::int64_t* slots,
                             std::span<const BlockCopy> copies) noexcept {
  num_copies_ = num_clears_ = 0;
  const auto block_at = [&](std::int64_t i) {
    return BlockId(
        static_cast<std::int32_t>(is_power_of_two_ ? slots[i] >> shift_ : slots[i] / block_size_));
  };
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const std::int32_t num_new = demands[i].num_tokens;
    const std::int32_t before = rows[i].length_tokens - num_new;
    const std::int32_t kept = is_power_of_two_ ? before & (block_size_ - 1) : before % block_size_;
    Row row{demands[i].sequence, 0};
    std::int32_t token = 0;
    if (kept != 0) {
      const bool may_matter = has_inherited_tails_ || num_copies_ < copies.size();
      if (may_matter && num_new > 0) plan_tail(tables, row, block_at(0), kept, copies);
      token = block_size_ - kept;
    }
    for (; token < num_new; token += block_size_) clear_entered(tables, row, block_at(token));
    slots += num_new;
  }
  return planned();
}

// ---- encoders ----------------------------------------------------------------------------------

std::uint64_t& ScrubPlanner::seen(SequenceId sequence) noexcept {
  return seen_[SequenceTable::slot_of(sequence)];
}

/// Notes that an append enters a block, or others write it. Returns whether that has been so while
/// the block was held: its generation ends when nobody holds it any more.
bool ScrubPlanner::note_entered(BlockId block, Generation generation) noexcept {
  const std::uint32_t its = generation.value + 1;
  return std::exchange(entered_[static_cast<std::size_t>(block.value)], its) == its;
}

/// The last block may have fewer tokens than it has room for. What is behind them is never written,
/// and goes to each fork with the block, so there it is cleared whoever wrote it.
void ScrubPlanner::enter_encoder(const BlockTables& tables, Row& row, BlockId block,
                                 Generation generation, std::int32_t num_tokens) noexcept {
  const bool is_full = num_tokens >= block_size_;
  if (note_entered(block, generation)) {
    const bool is_unknown = writer_of(block) == 0 && !is_clean(block);
    if (is_unknown && !is_full) clear(block, num_tokens, owner_of(tables, row));
    return;
  }
  encoder_blocks_[num_encoder_blocks_++] = block;
  enter(block);
  if (!is_full && !is_clean(block)) return clear(block, 0, owner_of(tables, row));
  clear_entered(tables, row, block);
}

ScrubPlan ScrubPlanner::plan_encoders(const BlockManager& manager, const BlockTables& tables,
                                      std::span<const AppendDemand> demands) noexcept {
  num_copies_ = num_clears_ = num_encoder_blocks_ = 0;
  encoders_.clear();
  for (const AppendDemand& demand : demands) {
    const SequenceId sequence = demand.sequence;
    if (seen(sequence) == sequence.value) continue;
    seen(sequence) = sequence.value;
    encoders_.push_back(sequence);
    Row row{sequence, 0};
    std::int32_t left = tables.info(sequence)->cross_tokens;
    for (std::int64_t i = 0; left > 0; ++i, left -= block_size_) {
      const Result<BlockId> held = tables.lookup(sequence, i, blocks_.part);
      if (!held) break;
      const std::int64_t slot = *tables.slot_of(sequence, i * block_size_, blocks_.part);
      enter_encoder(tables, row, BlockId(static_cast<std::int32_t>(slot / block_size_)),
                    manager.generation(*held), left);
    }
  }
  return planned();
}

/// What the append took has been given back; the next one takes other blocks.
void ScrubPlanner::note_abort() noexcept {
  for (const SequenceId sequence : encoders_) seen(sequence) = 0;
  encoders_.clear();
}

// ---- what was not carried out ------------------------------------------------------------------

/// Blocks without a known writer are cleared when a token enters them.
void ScrubPlanner::forget() noexcept {
  for (const std::span<const BlockScrub> list : {planned().copies, planned().clears}) {
    for (const BlockScrub& scrub : list) note_unknown(scrub.target);
  }
  has_inherited_tails_ = true;  // because a sequence may continue in a block that it wrote itself
  for (std::size_t i = 0; i < num_encoder_blocks_; ++i) {
    entered_[static_cast<std::size_t>(encoder_blocks_[i].value)] = 0;
  }
  num_encoder_blocks_ = 0;
  note_abort();
}

/// An encoder's block that a sequence has keeps its tokens, whatever became of the zeros. Memory
/// that was never used is not touched.
void ScrubPlanner::distrust() noexcept {
  for (std::uint64_t& writer : writers_) {
    if (writer != 0) writer = 0;
  }
  for (std::uint16_t& content : foreign_tokens_) {
    if (content != kUnknown) content = kUnknown;
  }
  for (std::uint64_t& sequence : seen_) {
    if (sequence != 0) sequence = 0;
  }
  has_inherited_tails_ = true;
}

}  // namespace kvarena
