#pragma once

/// @file
/// Sequences with groups over a simulated arena, judged by effects: every append writes what its
/// tokens are at the slots it got, copies are carried out, and every token that a later one reads
/// must be found where the tables say. Groups lie in the same bytes, so a page that two of them use
/// at once shows. Groups of states have a recurrence: a step finds the state of exactly the tokens
/// before it, whatever was forked, cut, undone or kept as a checkpoint.
///
/// A token is named once and for all tokens before it, so its name says what every group keeps for
/// it. With a prefix cache, new sequences have tokens that were there before: what they begin with
/// must be found where the tables say, as if they had written it themselves.

#include "kvarena/allocator/operation_log.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvarena::model {

/// A game: groups of layers, the pool, and how long sequences get.
struct GroupGame {
  const char* name;
  std::vector<TableGroup> groups;         // without ids
  std::vector<std::int64_t> token_units;  // by group: units of the arena that a token takes
  std::int64_t page_units = 0;            // of which a page has so many
  std::int64_t num_pages = 0;
  std::int32_t max_sequences = 8;
  std::int64_t longest = 600;
  bool can_undo = true;
  std::int64_t checkpoint_every = 0;
  bool has_prefix_cache = false;
  OperationLog* log = nullptr;  // of the manager
};

/// A fault to plant.
enum class GroupPlant {
  none,
  window_one_block_early,
  state_copy_lost,       // a copy or clearing of a state is not made
  checkpoint_rewritten,  // a checkpoint has no claim on its blocks
  state_not_kept,        // an undo finds a state written over
  companion_of_another,  // a hit finds what another node has in a group
};

/// Plays random operations. The first broken promise ends the game and is returned.
class GroupWorld {
 public:
  GroupWorld(const GroupGame& game, std::uint64_t seed, GroupPlant plant = GroupPlant::none);
  ~GroupWorld();

  /// Returns what was wrong, or nothing.
  std::optional<std::string> play(std::int64_t operations);
  const BlockManager& manager() const { return *manager_; }
  /// How often each thing happened.
  const std::map<std::string, std::int64_t>& outcomes() const { return outcomes_; }

 private:
  struct Life {
    SequenceId id;
    std::vector<std::uint64_t> tokens;  // what each token is
    std::uint64_t encoder = 0;          // what its encoder's tokens are
    std::int32_t cross_tokens = 0;
    bool has_encoder = false;  // its encoder's tokens have been written
    bool is_import = false;
    std::set<std::int64_t> checkpoints;          // lengths at which there may be one
    std::vector<std::set<std::int64_t>> states;  // by group: lengths of the states held
    bool is_lost = false;                        // its present state
    std::uint64_t salt = 0;
    std::vector<std::uint64_t> script;  // the tokens that come next; then new ones
    std::vector<std::int64_t> asked;    // lengths at which its prompt asks for checkpoints
  };
  /// Tokens that a sequence had.
  struct Script {
    std::uint64_t salt = 0;
    std::vector<std::uint64_t> tokens;
  };
  struct Pinned {
    HolderId holder;
    Life life;
    std::vector<std::vector<std::int64_t>> slots;  // by group and token; -1: not held
  };

  void operate();
  void begin();
  Life new_life();
  void begin_from();
  void import();
  void append();
  void write(std::vector<std::size_t>& rows, const std::vector<AppendDemand>& demands,
             const std::vector<std::vector<std::uint64_t>>& names, const AppendResult& result);
  void undo(const std::vector<std::size_t>& rows, std::vector<Life> before);
  void fork();
  void cut();
  void end();
  void reserve();
  void promise();
  void publish();
  void pin();
  void unpin();
  void check_all();
  void note_before();
  void expect_unchanged(const char* what);
  std::vector<std::int64_t> all_rows() const;
  void check(const Life& life, std::int64_t length, const char* when);
  void check_pins();
  std::int64_t brute_restorable(const Life& life, std::int64_t length);
  void write_cross(Life& life);

  // group_world_prefix.cpp
  void operate_prefix();
  void begin_with_prefix();
  void offer_to_another(const Life& from, std::int64_t length,
                        const std::vector<GroupBlocks>& blocks);
  void adopt_again();
  void note_asked(Life& life, std::int64_t prompt);
  void note_found(Life& life, const std::vector<std::uint64_t>& wanted, std::uint64_t salt);
  void keep_script(const Life& life);
  void tell_names(const Life& life, std::int64_t count, std::vector<std::uint64_t>& names);
  void publish_tokens(const Life& life);
  void plant_in_companions();
  static std::vector<std::int32_t> told(const std::vector<std::uint64_t>& names);

  // group_world_states.cpp
  bool is_state(std::size_t group) const { return groups_[group].kind == PagedKind::state; }
  void poison_states(const AppendResult& result);
  void copy_state(std::size_t group, const BlockCopy& copy);
  void run_states(const std::vector<std::size_t>& rows, const std::vector<AppendDemand>& demands,
                  const AppendResult& result);
  void write_state(std::size_t group, std::int64_t part, std::int32_t slot, std::uint64_t value);
  std::uint64_t read_state(std::size_t group, std::int64_t part, std::int32_t slot);
  std::uint64_t state_after(const Life& life, std::int64_t length) const {
    return length == 0 ? 0 : life.tokens[static_cast<std::size_t>(length) - 1];
  }
  void note_undone(Life& life, const Life& before, bool was_written);
  void note_settled();
  void note_cut(Life& life, std::int64_t length, bool is_child);
  void checkpoint();
  bool has_states(const Life& life, std::int64_t length);
  void check_states(const Life& life);
  void write_all_states(const Life& life);
  void check_pinned_state(const Pinned& pinned, std::size_t group);
  void forget_claims(SequenceId id);
  std::int32_t table_id(std::size_t group, BlockId id) const;

  std::uint64_t& unit(std::size_t group, std::int64_t slot);
  std::uint64_t stamp(std::size_t group, std::uint64_t token) const {
    return token * 31 + group + 1;
  }
  std::uint64_t random(std::uint64_t below) { return random_() % below; }
  std::size_t any() { return static_cast<std::size_t>(random(lives_.size())); }
  void fail(const std::string& what) {
    if (!wrong_) wrong_ = what;
  }
  bool expect(const Status& status, const char* what);

  const GroupGame game_;
  std::vector<TableGroup> groups_;
  std::mt19937_64 random_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<BlockTables> tables_;
  std::vector<std::uint64_t> arena_;
  std::vector<Life> lives_;
  std::vector<Pinned> pins_;
  std::vector<Script> scripts_;
  std::map<std::string, std::int64_t> outcomes_;
  std::optional<std::string> wrong_;
  std::uint64_t next_token_ = 1;
  GroupPlant plant_;
  std::vector<SequenceId> unsettled_;         // the rows of the last append
  std::vector<std::int64_t> unsettled_from_;  // and their lengths before it
  std::vector<std::int64_t> figures_before_;  // of pages and groups, before a call
  std::vector<std::int64_t> rows_before_;     // of all tables; empty: not looked at this time
  std::uint64_t calls_ = 0;
};

}  // namespace kvarena::model
