#include "effects/visible_state.hpp"

#include "support/pool_snapshot.hpp"

namespace kvarena::test {
namespace {

std::int64_t number(std::uint64_t value) { return static_cast<std::int64_t>(value); }

}  // namespace

void VisibleState::look(const BlockManager& manager, const BlockTables& tables) {
  look_at_blocks(manager);
  look_at_tables(tables);
}

void VisibleState::look_at_blocks(const BlockManager& manager) {
  const std::vector<std::int64_t> counts = counts_of(manager.stats());
  seen_.assign(counts.begin(), counts.end());
  seen_.insert(seen_.end(),
               {manager.num_open_tickets(), manager.fence_entries_available(),
                number(manager.newest_ticket().value), number(manager.oldest_open_ticket().value)});
  for (std::int32_t i = 0; i < manager.num_blocks(); ++i) {
    const BlockId id(i);
    seen_.push_back(static_cast<std::int64_t>(manager.state(id)) << 32 |
                    manager.generation(id).value);
    seen_.push_back(manager.reference_count(id));
  }
  reports_.resize(static_cast<std::size_t>(manager.max_holders()));
  const std::size_t num_reports = manager.holders(reports_);
  for (std::size_t i = 0; i < num_reports; ++i) {
    const HolderReport& report = reports_[i];
    seen_.insert(seen_.end(), {number(report.holder.value), report.references, report.reserved});
  }
}

void VisibleState::look_at_tables(const BlockTables& tables) {
  const TableStats t = tables.stats();
  seen_.insert(seen_.end(),
               {t.sequences, t.tokens, t.entries, t.waste_tokens, t.pages_used, t.pages_total,
                number(t.sequences_ever), number(t.copies_on_write), t.pins, t.pinned_entries});
  for (const SequenceId id : tables.sequences()) {
    const SequenceInfo info = tables.info(id).value();
    seen_.insert(seen_.end(),
                 {number(id.value), info.length_tokens, info.num_blocks, info.max_length_tokens,
                  number(info.holder.value), static_cast<std::int64_t>(info.import_state)});
    ids_.resize(static_cast<std::size_t>(info.num_blocks));
    static_cast<void>(tables.blocks_of(id, ids_).value());
    for (const BlockId block : ids_) seen_.push_back(block.value);
  }
}

/// Returns the references of the floors of tenants.
std::int64_t VisibleState::floor_references(const BlockManager& manager, bool& has_floors) {
  std::int64_t references = 0;
  reports_.resize(static_cast<std::size_t>(manager.max_holders()));
  const std::size_t num_reports = manager.holders(reports_);
  for (std::size_t i = 0; i < num_reports; ++i) {
    if (reports_[i].purpose != "salt floor") continue;
    has_floors = true;
    references += reports_[i].references;
  }
  return references;
}

void VisibleState::look_at_standing(const BlockManager& manager, const BlockTables& tables,
                                    bool with_blocks) {
  seen_.clear();
  // An append that was taken back has evicted cached blocks for good.
  const bool has_cached = tables.match({}).is_ok();
  const BlockStats s = manager.stats();
  const TableStats t = tables.stats();
  // It has made floors of tenants let cached blocks go, too.
  bool has_floors = false;
  const std::int64_t references = s.references - floor_references(manager, has_floors);
  seen_.insert(seen_.end(), {s.offline, s.holders, references, s.fence_entries, t.sequences,
                             t.tokens, t.entries, manager.num_open_tickets()});
  for (const SequenceId id : tables.sequences()) {
    const SequenceInfo info = tables.info(id).value();
    seen_.insert(seen_.end(), {number(id.value), info.length_tokens, info.num_blocks});
    if (!with_blocks) continue;
    seen_.push_back(manager.holder(info.holder).value().reserved);
    ids_.resize(static_cast<std::size_t>(info.num_blocks));
    static_cast<void>(tables.blocks_of(id, ids_).value());
    for (const BlockId block : ids_) {
      seen_.insert(seen_.end(), {block.value, number(manager.generation(block).value),
                                 has_cached ? 0 : number(manager.claims(block))});
    }
  }
  if (with_blocks) {
    // A block that a floor let go is cached, or only fenced.
    const std::int64_t kept = has_floors ? s.referenced + s.fenced : 0;
    const std::int64_t cached = has_cached ? s.evictable : 0;
    seen_.insert(seen_.end(), {s.free + cached + kept, has_floors ? 0 : s.referenced,
                               has_floors ? 0 : s.fenced, s.evictable - cached, s.reserved});
  }
}

}  // namespace kvarena::test
