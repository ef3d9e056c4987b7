#pragma once

/// @file
/// A game of random steps on block tables, and what a step's kernels must then find: for tests of
/// the tables' mirror on any device. Expectations come from BlockTables::view alone.

#include "kvarena/blocktable/block_tables.hpp"
#include "step/device_tables.hpp"
#include "step/device_tables_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace kvarena::test {

/// Everything a step's kernels read, on the host.
struct StepArrays {
  std::vector<BlockId> block_tables;
  std::vector<std::int32_t> row_slots;
  std::vector<std::int64_t> row_offsets;
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> num_blocks;
  std::vector<std::int64_t> q_offsets;
  std::vector<std::int64_t> slots;
  std::vector<BlockCopy> copies;

  /// From an image of the device allocation.
  static StepArrays of(const DeviceTablesMemory& plan, const std::byte* image);
};

/// What the arrays must say about a step.
struct ExpectedStep {
  struct Row {
    std::int32_t seq_len = 0;
    std::vector<BlockId> blocks;
  };
  std::vector<Row> rows;                // none: a step that was missed
  std::vector<std::int64_t> q_offsets;  // [rows + 1]
  std::vector<std::int64_t> slots;
  std::vector<BlockCopy> copies;

  /// Where the arrays differ first, or empty.
  std::string difference(const StepArrays& arrays) const;
};

/// What they must say after a launch that took no step.
ExpectedStep nothing();

/// The sizes of a game.
struct StepGameOptions {
  std::uint64_t seed = 1;
  std::int64_t num_blocks = 400;
  std::int32_t first_sequences = 0;     ///< to begin with
  std::int32_t longest_chunk = 40;      ///< tokens
  std::uint32_t one_token_in_100 = 70;  ///< demands of a single token
  DeviceTablesOptions tables;
};

/// A game of `max_sequences` sequences in all, all of which fit a step.
DeviceTablesOptions small_tables(std::int32_t block_size, std::int32_t steps_in_flight = 2);

/// A game whose tables share a pool that is far smaller than all of them at their longest.
DeviceTablesOptions pooled_tables(std::int32_t block_size, std::int32_t steps_in_flight = 2);

/// A game of thousands of sequences and long chunks.
StepGameOptions large_game();

/// Plays on tables of its own. Equal seeds play equal games.
class StepGame {
 public:
  explicit StepGame(const StepGameOptions& options);

  /// Creates, forks, cuts, reserves and destroys at random, fails an append now and then, then
  /// appends to a random batch.
  AppendResult next();
  /// What the last append's step must look like. Before the next change of the tables.
  ExpectedStep expected();

  BlockTables& tables() noexcept { return tables_; }
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

 private:
  SequenceOptions longest() const;
  void change_something();
  void append_too_much();
  void destroy_one();
  void choose_batch();
  std::size_t any() { return below(living_.size()); }

  StepGameOptions options_;
  std::mt19937_64 random_;
  BlockManager manager_;
  BlockTables tables_;
  std::vector<SequenceId> living_;
  std::vector<AppendDemand> batch_;
  AppendResult appended_;
};

}  // namespace kvarena::test
