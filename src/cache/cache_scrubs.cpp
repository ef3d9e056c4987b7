#include "cache/cache_scrubs.hpp"

#include <utility>

namespace kvarena {
namespace {

/// The blocks of a part of the groups.
ScrubBlocks blocks_of(const TableGroup& its, std::int64_t block_bytes, std::size_t part,
                      std::int64_t num_pages, std::int32_t max_sequences) noexcept {
  const bool is_cross = its.kind == PagedKind::cross;
  return {.num_ids = num_pages * its.ids_per_page,
          .block_size_tokens = its.block_size_tokens,
          .part = static_cast<std::int32_t>(part),
          .ids_per_page = its.ids_per_page,
          .max_sequences = is_cross ? max_sequences : 0,
          .max_encoder_tokens = is_cross ? static_cast<std::int32_t>(its.limit_tokens) : 0,
          .block_bytes = block_bytes,
          .ids_per_block = its.ids_per_block};
}

/// The same of a planned cache.
ScrubBlocks blocks_of(const GroupPlan& groups, std::size_t part, std::int64_t num_pages,
                      std::int32_t max_sequences) noexcept {
  return blocks_of(groups.tables[part], groups.blocks[part].block_bytes, part, num_pages,
                   max_sequences);
}

}  // namespace

CacheScrubs::CacheScrubs(Scrub mode, std::int64_t num_blocks, std::int32_t block_size_tokens,
                         const StepLimits& limits)
    : plans_(1) {
  planners_.emplace_back(
      mode, ScrubBlocks{.num_ids = num_blocks, .block_size_tokens = block_size_tokens}, limits);
}

CacheScrubs::CacheScrubs(Scrub mode, const GroupPlan& groups, const PagePool& pages,
                         std::int32_t max_sequences, const StepLimits& limits)
    : groups_(groups.tables),
      pages_(std::in_place, pages, groups.layout.page_bytes()),
      plans_(groups.layout.parts().size() + 1),
      copies_(static_cast<std::size_t>(limits.max_rows)) {
  const std::size_t num_parts = groups.layout.parts().size();
  for (const BlockGroup& its : groups.blocks) bytes_.push_back(its.block_bytes);
  planners_.reserve(num_parts);
  for (std::size_t part = 0; part < num_parts; ++part) {
    planners_.emplace_back(mode, blocks_of(groups, part, pages.num_pages(), max_sequences), limits,
                           &*pages_);
  }
}

std::int64_t CacheScrubs::host_bytes(std::int64_t num_blocks, std::int32_t block_size_tokens,
                                     const StepLimits& limits) noexcept {
  return ScrubPlanner::host_bytes({.num_ids = num_blocks, .block_size_tokens = block_size_tokens},
                                  limits);
}

std::int64_t CacheScrubs::host_bytes(const GroupPlan& groups, std::int64_t num_pages,
                                     std::int32_t max_sequences,
                                     const StepLimits& limits) noexcept {
  std::int64_t bytes = PageWriters::host_bytes(num_pages) +
                       limits.max_rows * static_cast<std::int64_t>(sizeof(BlockCopy));
  for (std::size_t part = 0; part < groups.layout.parts().size(); ++part) {
    bytes += ScrubPlanner::host_bytes(blocks_of(groups, part, num_pages, max_sequences), limits);
  }
  return bytes;
}

std::int64_t CacheScrubs::max_entries(const TableGroup& group, const StepLimits& limits) noexcept {
  return limits.max_rows + ScrubPlanner::max_clears(blocks_of(group, 0, 0, 0, 0), limits);
}

/// The copies on write of a part, in the order of the demands.
std::span<const BlockCopy> CacheScrubs::copies_of(std::size_t part,
                                                  const AppendResult& appended) noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < appended.copies.size(); ++i) {
    if (appended.copy_groups[i] != static_cast<std::int32_t>(part)) continue;
    copies_[count++] = appended.copies[i];
  }
  return {copies_.data(), count};
}

/// Notes the pages of the states that the step writes: they are pages of states from now on.
void CacheScrubs::note_states(const AppendResult& appended) noexcept {
  std::int32_t table = static_cast<std::int32_t>(planners_.size());
  for (const StateSlots& states : appended.states) {
    const std::int64_t ids_per_page = groups_[static_cast<std::size_t>(table)].ids_per_page;
    for (const std::span<const std::int32_t> slots : {states.write, states.extra_slots}) {
      for (const std::int32_t slot : slots) {
        if (slot >= 0) pages_->take(slot / ids_per_page, table);
      }
    }
    ++table;
  }
}

std::span<const ScrubPlan> CacheScrubs::plan(const BlockManager& manager, const BlockTables& tables,
                                             std::span<const AppendDemand> demands,
                                             const AppendResult& appended) noexcept {
  if (groups_.empty()) {
    plans_[0] =
        planners_[0].plan(tables, demands, appended.rows, appended.slots.data(), appended.copies);
    return plans_;
  }
  const std::size_t num_tokens = appended.slots.size() / groups_.size();
  pages_->note_freed();
  pages_->begin_step();
  for (std::size_t part = 0; part < planners_.size(); ++part) {
    if (groups_[part].kind == PagedKind::cross) {
      plans_[part + 1] = planners_[part].plan_encoders(manager, tables, demands);
      continue;
    }
    plans_[part + 1] =
        planners_[part].plan(tables, demands, appended.rows,
                             appended.slots.data() + part * num_tokens, copies_of(part, appended));
  }
  note_states(appended);
  plans_[0].clears = pages_->end_step();
  return plans_;
}

void CacheScrubs::forget() noexcept {
  for (ScrubPlanner& planner : planners_) planner.forget();
  if (pages_) pages_->forget();
}

void CacheScrubs::note_abort() noexcept {
  for (ScrubPlanner& planner : planners_) planner.note_abort();
}

void CacheScrubs::distrust() noexcept {
  for (ScrubPlanner& planner : planners_) planner.distrust();
  if (pages_) pages_->distrust();
}

void CacheScrubs::note_fork(const BlockTables& tables, SequenceId parent,
                            SequenceId child) noexcept {
  const SequenceInfo from = *tables.info(parent);
  const SequenceInfo to = *tables.info(child);
  for (ScrubPlanner& planner : planners_) planner.note_fork(from, to);
}

void CacheScrubs::note_foreign_tails() noexcept {
  for (ScrubPlanner& planner : planners_) planner.note_foreign_tails();
}

void CacheScrubs::note_import(const BlockManager& manager, const BlockTables& tables,
                              SequenceId sequence) noexcept {
  if (groups_.empty()) {
    const std::int64_t num_blocks = tables.info(sequence)->num_blocks;
    for (std::int64_t i = 0; i < num_blocks; ++i) {
      const BlockId block = *tables.lookup(sequence, i);
      planners_[0].note_import(block, manager.generation(block));
    }
    return;
  }
  pages_->note_freed();
  for (std::size_t table = 0; table < groups_.size(); ++table) {
    const auto number = static_cast<std::int32_t>(table);
    for (std::int64_t i = 0;; ++i) {
      const Result<BlockId> block = tables.lookup(sequence, i, number);
      if (!block) break;
      if (*block == kNoBlock) continue;
      const BlockPlace place = manager.place_of(*block);
      if (table < planners_.size()) {
        const TableGroup& its = groups_[table];
        planners_[table].note_import(
            BlockId(static_cast<std::int32_t>(place.page * its.ids_per_page +
                                              place.slot * its.ids_per_block)),
            manager.generation(*block));
      } else {
        static_cast<void>(
            pages_->note_import(place.page, number, (place.slot + 1) * bytes_[table]));
      }
    }
  }
}

}  // namespace kvarena
