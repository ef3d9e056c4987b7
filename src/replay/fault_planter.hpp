#pragma once

/// @file
/// `FaultPlanter`: plants one defect in a running replay, the way a bug of an engine, a kernel or
/// the library would, so that tests prove that verification finds it. It goes around the API on
/// purpose.

#include "replay/engine_pool.hpp"
#include "replay/job.hpp"
#include "replay/replay_options.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarena::replay {

/// Plants `options.fault` once, at the first opportunity after `options.fault_after` of them.
class FaultPlanter {
 public:
  FaultPlanter(const ReplayAttention& options, EnginePool& pool)
      : fault_(options.fault), skip_(options.fault_after), pool_(pool) {}

  /// Before the sequences of a step grow: keeps what drop_copy puts back.
  void before_append(std::span<const AppendDemand> demands);
  /// After they grew, before K and V are written: drop_copy.
  void after_append();
  /// Between steps: flip_byte and swap_entries, in one of the running sequences.
  void between_steps(std::span<const std::unique_ptr<Job>> running);
  /// Before a finished sequence is destroyed: lose_release.
  void before_destroy(const Job& job);

 private:
  bool is_due();
  void copy(void* target, const void* source, std::int64_t bytes);
  void flip_byte(const Job& job);
  bool swap_entries(const Job& job);

  Fault fault_;
  std::int64_t skip_;
  EnginePool& pool_;
  bool planted_ = false;
  // drop_copy: a sequence about to copy its last block, and the pool before.
  SequenceId copier_ = kNoSequence;
  std::int64_t copied_index_ = 0;
  BlockId shared_block_ = kNoBlock;
  std::vector<std::byte> before_;
};

}  // namespace kvarena::replay
