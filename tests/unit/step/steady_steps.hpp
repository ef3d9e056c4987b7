#pragma once

/// @file
/// Steps of an engine that allocates nothing itself: 32 sequences grow by a token a step; one is
/// replaced by a fork of another at each step.

#include "kvarena/blocktable/block_tables.hpp"
#include "step/device_tables.hpp"

#include <cstddef>
#include <vector>

namespace kvarena::test {

/// The tables and their next step.
class SteadySteps {
 public:
  static constexpr std::int32_t kSequences = 32;

  static DeviceTablesOptions options() {
    return {.limits = {.steps_in_flight = 2,
                       .max_rows = kSequences,
                       .max_tokens = 256,
                       .max_blocks = 16384},
            .max_sequences = kSequences,
            .max_sequence_blocks = 512,
            .block_size_tokens = 4};
  }
  SteadySteps() {
    for (SequenceId& id : sequences_) id = tables.create_sequence().value();
  }
  /// Requires room in the pool.
  AppendResult next() {
    const std::size_t replaced = step_ % kSequences;
    const SequenceId parent = sequences_[(step_ + 7) % kSequences];
    ++step_;
    static_cast<void>(tables.destroy(sequences_[replaced]));
    sequences_[replaced] = tables.fork(parent, tables.info(parent)->length_tokens).value();
    return tables.append_one_each(sequences_).value();
  }

 private:
  BlockManager manager_ =
      BlockManager::create({.num_blocks = 20'000, .max_holders = kSequences}).value();

 public:
  BlockTables tables =
      BlockTables::create(
          manager_, {.block_size_tokens = 4, .max_sequences = kSequences, .report_rows = true})
          .value();

 private:
  std::vector<SequenceId> sequences_ = std::vector<SequenceId>(kSequences);
  std::size_t step_ = 0;
};

}  // namespace kvarena::test
