#pragma once

/// @file
/// `PrefixCompanions`: what other groups of layers keep for the registered blocks of a prefix
/// cache. The cache registers the blocks of one group, whose layers keep all tokens; each is a
/// *node* here. A companion of a node has the same tokens for the layers of another group: a block,
/// or the blocks of the state behind the node's last token. A node without a companion can still be
/// a part of a prefix, but a sequence cannot begin where it would need that companion.
///
/// A companion's blocks are published. Nobody need hold them; so each question asks the manager
/// whether they are still what they were. All memory is allocated at construction.

#include "base/lazy_array.hpp"
#include "kvarena/allocator/block_manager.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvarena {

/// The companions of all nodes, by group. Calls cost O(blocks of a companion), unless they say
/// otherwise.
class PrefixCompanions {
 public:
  /// Makes a place for each block of the manager and group. `is_state` says which groups have
  /// states: their blocks stay published when their node goes, because sequences may have them as
  /// checkpoints.
  PrefixCompanions(BlockManager& manager, std::vector<bool> is_state);
  /// Returns the bytes of such places.
  static std::int64_t bytes(std::int64_t num_blocks, std::int64_t num_groups) noexcept;

  /// Returns whether a node has a companion in a group, all of whose blocks are still published.
  bool has(BlockId node, std::size_t group) const noexcept;
  /// Copies the blocks of a companion that is there. Returns their number; `ids` and `generations`
  /// have room for them.
  std::size_t copy(BlockId node, std::size_t group, std::span<BlockId> ids,
                   std::span<Generation> generations) const noexcept;
  /// Makes blocks that somebody holds a node's companion, and publishes them. Does nothing when the
  /// node has one, or when a block belongs to another node or cannot be published.
  void attach(BlockId node, std::size_t group, std::span<const BlockId> ids,
              std::span<const Generation> generations) noexcept;
  /// The node is not registered any more: nobody will find its companions. O(groups + blocks).
  void drop(BlockId node) noexcept;
  /// An allocation has taken a block, or nobody wrote it: nobody will find the companion it is part
  /// of. O(blocks).
  void lost(BlockId id) noexcept;
  /// Returns whose companion a block is part of at this generation, or kNoBlock. O(1).
  BlockId node_of(BlockId id, Generation generation) const noexcept {
    const Record& record = records_[place(id)];
    return record.generation == generation ? BlockId(record.node - 1) : kNoBlock;
  }
  /// Returns whether a block is part of a companion.
  bool has_block(BlockId id) const noexcept { return records_[place(id)].node != 0; }

  /// Checks that each companion is whole, that it belongs to a node for which `is_node` is true,
  /// and that every evictable block of a group without states is one. Returns invariant_violated.
  /// O(blocks x groups).
  Status check(const std::function<bool(BlockId)>& is_node) const;

 private:
  friend struct CompanionProbe;  // tests plant faults with it

  // Ids are stored plus 1; 0 is none.
  struct Record {
    std::int32_t node = 0;  // whose companion the block belongs to
    std::int32_t next = 0;  // the companion's next block
    Generation generation;  // of the block, when it was attached
  };
  static std::size_t place(BlockId id) noexcept { return static_cast<std::size_t>(id.value); }
  std::int32_t& first(BlockId node, std::size_t group) noexcept {
    return firsts_[place(node) * is_state_.size() + group];
  }
  std::int32_t first(BlockId node, std::size_t group) const noexcept {
    return firsts_[place(node) * is_state_.size() + group];
  }
  bool is_alive(BlockId id) const noexcept;
  /// Forgets a companion. With `unpublishes` its blocks lose their content.
  void detach(BlockId node, std::size_t group, bool unpublishes) noexcept;

  BlockManager* manager_;
  std::vector<bool> is_state_;      // by group
  LazyArray<std::int32_t> firsts_;  // [blocks, groups] first block of a node's companion
  LazyArray<Record> records_;       // by block
};

}  // namespace kvarena
