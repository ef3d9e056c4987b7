#pragma once

/// @file
/// Everything that a manager and its tables show, as numbers, so that a world can say "the refused
/// call changed nothing".

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <cstdint>
#include <vector>

namespace kvarena::test {

/// Reads the state of one manager and its tables, again and again into the same memory.
class VisibleState {
 public:
  /// Looks now. O(blocks + holders + table entries).
  void look(const BlockManager& manager, const BlockTables& tables);
  /// Looks at what stands, not at what ever happened: counters, and how often a free block was
  /// handed out. Without blocks: at lengths and capacities, whatever blocks they are made of.
  void look_at_standing(const BlockManager& manager, const BlockTables& tables, bool with_blocks);
  friend bool operator==(const VisibleState& a, const VisibleState& b) {
    return a.seen_ == b.seen_;
  }

 private:
  void look_at_blocks(const BlockManager& manager);
  void look_at_tables(const BlockTables& tables);
  std::int64_t floor_references(const BlockManager& manager, bool& has_floors);

  std::vector<std::int64_t> seen_;
  std::vector<HolderReport> reports_;
  std::vector<BlockId> ids_;
};

}  // namespace kvarena::test
