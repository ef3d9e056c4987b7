#pragma once

/// @file
/// `RecencyOrder`: tail_first and head_first. The evictable blocks in the order in which they
/// became evictable; with head_first each run of blocks is reversed. EvictionOrder says what the
/// calls do.

#include "allocator/block_lists.hpp"

#include <cstdint>

namespace kvarena {

/// The order of EvictionPolicy::tail_first and head_first.
class RecencyOrder {
 public:
  RecencyOrder(bool reverses_runs, std::int64_t num_blocks)
      : blocks_(1, static_cast<std::size_t>(num_blocks)), reverses_runs_(reverses_runs) {}

  static constexpr std::int64_t bytes(std::int64_t num_blocks) noexcept {
    return BlockLists::bytes(1, num_blocks);
  }

  BlockId next() const noexcept { return blocks_.front(kAll); }
  void insert(BlockId id) noexcept {
    if (!reverses_runs_ || run_ == 0) return blocks_.append(kAll, id);
    if (run_ != open_run_) before_run_ = blocks_.back(kAll);
    open_run_ = run_;
    blocks_.insert_after(kAll, before_run_, id);
  }
  void hold(BlockId id) noexcept {
    open_run_ = 0;
    blocks_.remove(kAll, id);
  }
  void use(BlockId) noexcept {}
  void forget(BlockId) noexcept {}
  void begin_run(std::uint64_t run) noexcept { run_ = run; }
  void end_run() noexcept { open_run_ = 0; }

  bool is_whole(std::int64_t size) const {
    return blocks_.count(kAll, size, [](BlockId) {}) == size;
  }
  bool agrees(BlockId id) const noexcept { return blocks_.links_agree(kAll, id); }

 private:
  static constexpr std::size_t kAll = 0;

  BlockLists blocks_;
  bool reverses_runs_;
  std::uint64_t run_ = 0;       // whose blocks become evictable now; 0: no run
  std::uint64_t open_run_ = 0;  // the run to which the last change belonged
  BlockId before_run_ = kNoBlock;
};

}  // namespace kvarena
