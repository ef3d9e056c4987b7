#pragma once

/// @file
/// `States`: the states of sequences in groups of recurrent layers. The table of a sequence in such
/// a group has whole states, `parts` blocks each. Between steps these are the state at the
/// sequence's length and those of the rollback_tokens before it, as far as there are any. In a step
/// (until it is settled) they are, in this order, the states from before the step, those that it
/// took, and its *marks*: states inside the step that become checkpoints.
///
/// A step writes over a state from before it that leaves with the step, when nobody else has a
/// claim on it and an undo need not have it back. Otherwise it takes a new state.

#include "base/lazy_array.hpp"
#include "blocktable/checkpoint_list.hpp"
#include "blocktable/group_tables.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvarena {

struct BlockTables::Impl::Groups::States {
  /// What is known of a group of states.
  struct Of {
    std::size_t group = 0;          ///< in the tables
    std::int64_t parts = 1;         ///< blocks of a state
    std::int64_t rollback = 0;      ///< states before the present one that are kept
    bool is_in_place = false;       ///< as StateMode
    bool keeps = false;             ///< a step takes new states only
    std::size_t first_part = 0;     ///< in the handles of a checkpoint
    std::size_t first_version = 0;  ///< in the states of a sequence
  };
  /// One state that a sequence holds.
  struct Version {
    static constexpr std::int32_t kNew = -1;
    std::int32_t length = 0;
    std::int32_t was = 0;  ///< its length before the append; kNew: it was taken by the append
  };
  /// The states of a sequence in one group.
  struct Held {
    std::int32_t num_versions = 0;
    std::int32_t num_marks = 0;
    std::int32_t first_mark = 0;  ///< its length; next_mark has the others
  };
  /// What a step hands out in one group.
  struct Output {
    LazyArray<std::int32_t> read;
    LazyArray<std::int32_t> write;
    LazyArray<std::int32_t> extra_offsets;
    LazyArray<std::int32_t> extra_tokens;
    LazyArray<std::int32_t> extra_slots;
    std::size_t num_extras = 0;
    std::size_t num_offsets = 0;  ///< rows whose extra_offsets are written
    /// Begins the extras of a row. Rows in front of it whose offsets are not written have none.
    void begin_row(std::size_t row) noexcept {
      std::fill(extra_offsets.data() + num_offsets, extra_offsets.data() + row + 1,
                static_cast<std::int32_t>(num_extras));
      num_offsets = row + 1;
    }
  };

  /// Returns whether any group is of states.
  static bool any_of(std::span<const TableGroup> groups) noexcept;
  States(Groups& groups, const BlockTablesOptions& options);
  static std::int64_t host_bytes(std::int64_t num_blocks,
                                 const BlockTablesOptions& options) noexcept;

  // ---- state_tables.cpp: what a sequence has
  void begin(SequenceId id) noexcept;
  void end(SequenceId id) noexcept { checkpoints.drop_after(Groups::slot_of(id), 0); }
  /// The place of the state at `length` in the sequence's table, in entries; nullopt: it has none.
  std::optional<std::int64_t> entry_of(SequenceId id, const Of& of,
                                       std::int64_t length) const noexcept;
  /// The same in an append that is about to be settled, marks included.
  std::optional<std::int64_t> entry_with_marks(SequenceId id, const Of& of,
                                               std::int64_t length) const noexcept;
  bool has_all(SequenceId id, std::int64_t length) const noexcept;
  /// Returns whether the state at the sequence's length was lost.
  bool is_lost(const Sequence& s) const noexcept {
    return s.length > 0 && !has_all(s.id, s.length);
  }
  std::int64_t restorable(SequenceId id, std::int64_t length) const noexcept;
  /// Sets what the next step finds after the states or the length have changed.
  void place(const Sequence& s) noexcept;
  Status check_sequence(SequenceId id, const Sequence& s, const Of& of) const;

  // ---- state_sequences.cpp: references
  /// Gives `child` the states of `parent` at `length`, or a checkpoint. On failure it has a part.
  Status share(SequenceId parent, Sequence& child, std::int64_t length);
  /// Gives a pin the present state of one group.
  Status share_with_pin(const Sequence& s, const Of& of, HolderId holder, Table& to,
                        std::int64_t count);
  /// Gives a sequence one state more, with references on its blocks.
  Status adopt(Sequence& s, const Of& of, std::int64_t length, std::span<const BlockId> ids,
               std::span<const Generation> generations);
  /// Notes that a new sequence has the states at `length`. Their blocks are in its tables.
  void note_first(SequenceId id, std::int64_t length) noexcept;
  /// Drops the states and checkpoints behind `length`. The sequence keeps its length.
  Status lose(Sequence& s, std::int64_t length);
  /// Cuts the states to a length that can be had.
  Status cut(Sequence& s, std::int64_t length, Ticket ticket);
  Status erase(const Sequence& s, const Of& of, std::int64_t first, std::int64_t count,
               Ticket ticket);
  Status erase_version(const Sequence& s, const Of& of, std::int64_t version, Ticket ticket);
  Status take_checkpoint(Sequence& s, std::int64_t length);
  Status drop_after(Sequence& s, const Of& of, std::int64_t length, Ticket ticket);

  // ---- state_append.cpp: a step
  /// Returns how many states a step of `wanted` > 0 tokens takes.
  std::int64_t num_fresh(const Sequence& s, const Of& of, std::int64_t wanted) const noexcept;
  void begin_step() noexcept;
  /// Takes the marks of a row, if pages can be had.
  void take_marks(Sequence& s, std::int64_t wanted);
  /// Hands out the slots of a row and notes its new states. The length is still the old one.
  void step(Sequence& s, std::int64_t wanted, std::size_t row) noexcept;
  /// The same for a row that only writes over its states. If the row had the same states in the
  /// step before, their slots are there already.
  void write_over(const Sequence& s, std::int64_t wanted, std::size_t row) noexcept {
    const std::size_t slot = Groups::slot_of(s.id);
    Version* const its = versions.data() + slot * max_versions;
    for (const Of& of : list) {
      its[of.first_version] = {.length = static_cast<std::int32_t>(s.length + wanted),
                               .was = s.length};
    }
    if (row_states[row] != state_numbers[slot]) hand_out_present(s.id, row);
  }
  /// Hands out the slots of the present states: the row reads and writes them.
  void hand_out_present(SequenceId id, std::size_t row) noexcept;
  /// Completes what the append returns.
  std::span<const StateSlots> end_step(std::size_t rows) noexcept;
  void settle(Sequence& s) noexcept;
  void undo(Sequence& s, bool are_written) noexcept;
  /// The blocks that a sequence has at most, between steps and in one.
  std::int64_t most_blocks(const Of& of) const noexcept;
  /// The length at which a settled append has work to do next.
  std::int64_t next_work(const Sequence& s) const noexcept;

  // ---- state_checkpoints.cpp
  bool is_live(std::int32_t record) const noexcept;
  std::span<const BlockId> ids_of(std::int32_t record, const Of& of) const noexcept {
    return checkpoints.ids(record).subspan(of.first_part, static_cast<std::size_t>(of.parts));
  }
  std::span<const Generation> generations_of(std::int32_t record, const Of& of) const noexcept {
    return checkpoints.generations(record).subspan(of.first_part,
                                                   static_cast<std::size_t>(of.parts));
  }
  std::int32_t live_record(SequenceId id, std::int64_t length) const noexcept;
  void keep_checkpoint(Sequence& s, std::int64_t length) noexcept;
  Result<std::int64_t> lengths_of(SequenceId id, std::span<std::int64_t> lengths) const;
  Result<std::int64_t> blocks_at(SequenceId id, std::int64_t length, std::int32_t group,
                                 std::span<BlockId> ids, std::span<Generation> generations) const;

  // ---- parts
  Table& table_of(SequenceId id, const Of& of) noexcept { return groups.tables_of(id)[of.group]; }
  const Table& table_of(SequenceId id, const Of& of) const noexcept {
    return groups.tables_of(id)[of.group];
  }
  Held& held_of(SequenceId id, const Of& of) noexcept {
    return held[Groups::slot_of(id) * list.size() + index_of(of)];
  }
  const Held& held_of(SequenceId id, const Of& of) const noexcept {
    return const_cast<States*>(this)->held_of(id, of);
  }
  std::span<Version> versions_of(SequenceId id, const Of& of) noexcept {
    Version* const first = versions.data() + Groups::slot_of(id) * max_versions + of.first_version;
    return {first, static_cast<std::size_t>(held_of(id, of).num_versions)};
  }
  std::span<const Version> versions_of(SequenceId id, const Of& of) const noexcept {
    return const_cast<States*>(this)->versions_of(id, of);
  }
  /// The table ids of the state at the sequence's length, [parts]; -1 when there is none.
  std::int32_t* present_of(SequenceId id, const Of& of) noexcept {
    return present.data() + Groups::slot_of(id) * static_cast<std::size_t>(parts_of_all) +
           of.first_part;
  }
  std::size_t index_of(const Of& of) const noexcept {
    return static_cast<std::size_t>(&of - list.data());
  }
  const Of* find(std::size_t group) const noexcept;
  /// A state is rewritten only when its holder has the only claim on each of its blocks.
  bool is_sole(const Table& table, const Of& of, std::int64_t version) const noexcept;
  bool is_rewritten(const Sequence& s, const Of& of, std::int64_t version,
                    std::int64_t after) const noexcept;
  std::int64_t num_marks(SequenceId id, const Of& of, std::int64_t length,
                         std::int64_t wanted) const noexcept;
  BlockId table_id_at(const Of& of, const Table& table, std::int64_t entry) const noexcept;
  void write_slots(const Of& of, const Table& table, std::int64_t first_entry,
                   std::int32_t* out) const noexcept;
  void add_extra(const Of& of, Output& output, const Table& table, std::int64_t token,
                 std::int64_t first_entry) noexcept;
  std::int32_t writes_over_until(const Sequence& s, const Of& of) const noexcept;
  /// Returns the next length behind `length` at which a sequence is to have a checkpoint.
  std::int64_t next_mark(SequenceId id, std::int64_t length) const noexcept;
  bool is_mark(SequenceId id, std::int64_t length) const noexcept {
    return length > 0 && next_mark(id, length - 1) == length;
  }
  /// Asks for checkpoints at the end of a sequence's prompt and where others leave it.
  void ask(SequenceId id, std::int64_t prompt_end, std::int64_t branch) noexcept;
  void choose_targets(const Sequence& s, const Of& of, std::int64_t wanted,
                      std::int64_t num_fresh) noexcept;
  void copy_present(const Of& of, const Table& table, std::optional<std::int64_t> from,
                    std::int64_t to) noexcept;
  void step_in(Sequence& s, const Of& of, std::int64_t wanted, std::size_t row) noexcept;
  void write_step(Sequence& s, const Of& of, std::int64_t wanted, Output& output,
                  std::int32_t* read, std::int32_t* write) noexcept;
  void note_versions(const Sequence& s, const Of& of, std::int64_t wanted,
                     std::int64_t num_fresh) noexcept;

  Groups& groups;
  Impl& t;
  /// Lengths at which a sequence's prompt asks for checkpoints; 0: none.
  struct Asked {
    std::int32_t prompt_end = 0;
    std::int32_t branch = 0;
  };

  std::int64_t every;      // checkpoint_every_tokens; 0: none
  LazyArray<Asked> asked;  // [max_sequences]
  std::vector<Of> list;
  std::int64_t parts_of_all = 0;    // blocks of a checkpoint
  std::size_t max_versions = 0;     // of a sequence, in all groups
  LazyArray<Held> held;             // [max_sequences, groups of states]
  LazyArray<Version> versions;      // [max_sequences, max_versions]
  LazyArray<std::int32_t> present;  // [max_sequences, parts_of_all] table ids of the present states
  LazyArray<std::uint64_t> state_numbers;  // [max_sequences] another one whenever `present` changes
  LazyArray<std::uint64_t> row_states;  // [rows] of the state that the row reads and writes; or 0
  std::uint64_t last_state_number = 0;
  CheckpointList checkpoints;
  std::vector<Output> outputs;             // by group of states
  std::vector<StateSlots> slots;           // the same
  LazyArray<std::int64_t> targets;         // entries of the states of a row that are written
  std::vector<HolderDemand> wanted_marks;  // by group of states
};

}  // namespace kvarena
