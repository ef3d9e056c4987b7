#pragma once

/// @file
/// `ModelDriver`: plays weighted random operations on a real BlockManager and BlockTables and on
/// the naive model of both, and compares everything that can be seen after each. Errors are made on
/// purpose: unknown ids, stale handles, double releases, overlong and oversized demands.

#include "kvarena/blocktable/block_tables.hpp"
#include "model/naive_pool.hpp"
#include "model/naive_tables.hpp"

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace kvarena::model {

/// One game: the sizes of the pool and the temper of the player.
struct Game {
  std::string name;                ///< for messages
  BlockManagerOptions pool;        ///< of the real manager
  BlockTablesOptions tables;       ///< of the real tables
  std::int64_t longest_chunk = 0;  ///< tokens of the longest prefill chunk
  std::uint64_t seed = 0;          ///< of the random numbers
  std::int64_t operations = 0;     ///< how many
  bool count_outcomes = false;     ///< fill outcomes()
};

/// The options and the seed, for a person who wants to see a failure again.
std::string to_string(const Game& game);

/// Plays one game.
class ModelDriver {
 public:
  explicit ModelDriver(const Game& game);
  /// Plays all operations, then gives everything back. Empty, or what differed at which operation.
  std::string play();
  /// How often each call ended in each way: "append: exhausted/block" and the like.
  const std::map<std::string, std::uint64_t>& outcomes() const { return outcomes_; }

 private:
  struct Outsider {  // a holder that is not a sequence: a cache, a transfer
    HolderId holder;
    std::vector<Handle> handles;
  };
  struct Move {
    const char* name;
    int weight;
    void (ModelDriver::*play)();
  };
  static std::span<const Move> moves();

  // moves on the tables (model_driver_tables.cpp)
  void create_sequence();
  void fork_sequence();
  void destroy_sequence();
  void destroy_several();
  void decode_step();
  void append_several();
  void reserve_capacity();
  void promise_capacity();
  void truncate_sequence();
  void roll_back_token();
  void ask_tables();
  void view_batch();
  // imports, pins and deadlines (model_driver_control.cpp)
  void import_sequence();
  void publish_import();
  void fail_import();
  void pin_blocks();
  void unpin_blocks();
  void set_deadline();
  void copy_rows();
  // moves on the manager (model_driver_pool.cpp)
  void register_outsider();
  void unregister_outsider();
  void reserve_for_outsider();
  void allocate_for_outsider();
  void allocate_for_several();
  void retain_block();
  void release_handles();
  void release_handles_after();
  void misuse_handles();
  void set_content();
  void set_retention();
  void advance_clock();
  void quarantine_block();
  void restore_block();
  void open_ticket();
  void retire_ticket();
  void ask_pool();

  // comparison (model_driver.cpp)
  void compare();
  void compare_accounts();
  void compare_block(BlockId id);
  void compare_sequence(SequenceId id);
  void compare_everything();
  void hand_everything_back();
  void expect_grant(const Result<std::int64_t>& real, const Result<Grant>& model,
                    std::span<const BlockId> ids, std::span<const Generation> generations);
  void expect_append(std::span<const AppendDemand> demands, const Result<AppendResult>& real,
                     const Result<Growth>& model);
  void mirror_row(const AppendedRow& row, SequenceId id);
  void expect_status(const Status& real, const Status& predicted, const char* what);
  void expect_equal(std::int64_t real, std::int64_t predicted, const char* what);
  void fail(const std::string& what);
  bool failed() const { return !failure_.empty(); }

  // luck
  std::uint64_t below(std::uint64_t end) { return end == 0 ? 0 : random_() % end; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  /// Small and large numbers alike, below 2^44.
  std::uint64_t far_below() { return below(std::uint64_t{1} << below(45)); }
  SequenceId any_sequence();
  std::vector<SequenceId> some_sequences(std::size_t at_most);
  std::vector<SequenceId> readable_sequences() const;
  SequenceId any_import();
  HolderId any_pin();
  void compare_pins();
  SequenceOptions sequence_options();
  Ticket any_ticket();
  Urgency any_urgency() { return one_in(3) ? Urgency::admission : Urgency::growth; }
  std::int64_t chunk_tokens();
  BlockId any_block();
  HolderId any_holder();
  Outsider* any_outsider();
  std::vector<Handle> take_some(Outsider& outsider);
  void forget(const Handle& handle);
  bool is_reserved(BlockId id) const;
  bool owns(const Outsider& outsider, std::span<const Handle> handles) const;
  void note_removed(SequenceId id);

  Game game_;
  std::mt19937_64 random_;
  BlockManager manager_;
  BlockTables tables_;
  NaivePool pool_;
  NaiveTables naive_;
  std::vector<SequenceId> living_;
  std::vector<SequenceId> dead_;
  std::vector<Outsider> outsiders_;
  std::vector<Handle> former_;  // handles given up, for misuse
  std::set<SequenceId> changed_;
  std::map<std::int32_t, std::vector<BlockId>> mirror_;  // by slot, fed by reported changes alone
  std::uint64_t mirrorings_ = 0;
  bool small_;  // compare everything after every operation
  std::int64_t operation_ = 0;
  const char* move_ = "create";
  std::string failure_;
  std::map<std::string, std::uint64_t> outcomes_;
};

}  // namespace kvarena::model
