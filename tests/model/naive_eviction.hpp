#pragma once

/// @file
/// `NaiveEviction`: which evictable block goes first by each policy, written as plainly as
/// possible. It searches all blocks for every answer.

#include "kvarena/allocator/eviction_policy.hpp"
#include "kvarena/base/ids.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace kvarena::model {

/// The evictable blocks of a pool, and what their policy remembers of held ones.
class NaiveEviction {
 public:
  explicit NaiveEviction(EvictionPolicy policy) : policy_(policy) {}

  /// The block is evictable from now on. Blocks of equal `run` that arrive with no other change in
  /// between are one run; 0: none.
  void arrive(BlockId id, std::uint64_t run);
  /// It is held again.
  void leave(BlockId id);
  /// It was found and taken.
  void use(BlockId id) { known_[id].uses = uses(id) + 1; }
  /// Its content is gone.
  void forget(BlockId id);
  /// Takes the block that goes first, and forgets it.
  BlockId evict();
  void end_run() { run_ = 0; }

  void set_retention(BlockId id, const RetentionHint& retention);
  void advance_clock(std::int64_t now);
  RetentionHint retention(BlockId id) const;
  std::int64_t clock() const { return clock_; }

  bool contains(BlockId id) const;
  std::int64_t size() const { return static_cast<std::int64_t>(arrived_.size()); }

 private:
  struct Known {
    std::int64_t uses = 1;
    RetentionHint retention;
  };
  std::int64_t uses(BlockId id) const;
  BlockId first();

  EvictionPolicy policy_;
  std::vector<BlockId> arrived_;  // the evictable blocks, by the time at which they became so
  std::map<BlockId, Known> known_;
  std::vector<BlockId> queue_;    // fifo: evictable or held, by the first time
  std::set<BlockId> passed_;      // fifo: their turn came while they were held
  std::vector<BlockId> overdue_;  // fifo: evictable, passed before
  std::uint64_t run_ = 0;
  std::size_t run_length_ = 0;
  std::int64_t clock_ = 0;
};

}  // namespace kvarena::model
