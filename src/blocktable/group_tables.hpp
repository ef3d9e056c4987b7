#pragma once

/// @file
/// `Groups`: the tables of sequences in a pool of several groups. The public calls of BlockTables
/// come here when their options have groups. A sequence's record is in the same SequenceTable as
/// without groups; its `room` is the tokens for which nothing happens in any table: no block begins
/// or leaves, and no state is taken. Blocks leave the front of a table when a step is settled, so
/// that a step that is undone has them back.

#include "allocator/own_pages.hpp"
#include "base/lazy_array.hpp"
#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_facts.hpp"
#include "blocktable/page_tree.hpp"
#include "kvarena/base/choose_pages.hpp"
#include "kvarena/blocktable/table_groups.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvarena {

struct BlockTables::Impl::Groups {
  struct States;  // state_tables.hpp

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  using Group = GroupFacts;
  /// A sequence's, or a pin's, blocks of one group. An append that stays within `fits_until`
  /// changes nothing here, and does not read it.
  struct Table {
    PageTree tree;                ///< by block index
    std::int32_t first_held = 0;  ///< entries in front of this one are absent
    std::int32_t fits_until = 0;  ///< end of the block of the last token; of states: the length to
                                  ///< which steps only write over the state
    std::int32_t mirrored = 0;    ///< kept entries in front of this one are in the mirror
    std::int64_t num_held() const noexcept { return tree.num_entries - first_held; }
  };
  /// A demand of the current call that takes blocks.
  struct Grown {
    std::size_t demand = 0;
    Sequence* sequence = nullptr;
    SequenceId id{};
    std::optional<Urgency> urgency{};
    bool owns_tails = false;  ///< its last blocks have no other claims
  };
  /// What it takes in one group.
  struct TableGrowth {
    std::int32_t old_entries = 0;
    std::int32_t new_entries = 0;
    BlockId tail;  ///< the last block, which is copied first; or kNoBlock
  };
  /// A block that the last append copied. Its sequence still holds it.
  struct KeptBlock {
    SequenceId id;
    std::int32_t group = 0;
    std::int32_t index = 0;  ///< in its table; the copy has this index now
    BlockId block;
    Generation generation;
    BlockId copy;
  };

  static Status check(const BlockManager& manager, const BlockTablesOptions& options) noexcept;
  Groups(Impl& its_tables, const BlockTablesOptions& options);
  ~Groups();
  static std::int64_t host_bytes(std::int64_t num_blocks, std::int64_t num_table_pages,
                                 const BlockTablesOptions& options) noexcept;

  Result<SequenceId> insert(const SequenceOptions& options, std::uint64_t parent_owner);

  // ---- group_sequences.cpp: the life of a sequence
  Result<SequenceId> fork(SequenceId parent, std::int64_t length, SequenceOptions options);
  Status destroy_many(std::span<const SequenceId> ids, Ticket ticket);
  Status truncate(SequenceId id, std::int64_t length, Ticket ticket);

  // ---- group_append.cpp: growth
  template <class Demands>
  Result<AppendResult> append(const Demands& demands, Urgency urgency);
  Result<AppendResult> append(std::span<const AppendDemand> demands, Urgency urgency);
  Result<AppendResult> append_one_each(std::span<const SequenceId> ids);
  Result<AppendResult> append_one_each(std::span<const SequenceId> ids,
                                       std::span<const std::int32_t> tokens);
  Status reserve_capacity(SequenceId id, std::int64_t capacity, Urgency urgency);

  // ---- group_settle.cpp: the end of an append, and promises
  void settle() noexcept;
  void undo_append(bool copies_are_made);
  Status promise_capacity(SequenceId id, std::int64_t capacity);

  // ---- group_imports.cpp, group_pins.cpp: blocks that others hold or fill
  Status retain_all(HolderId holder, std::span<const GroupBlocks> given);
  Result<SequenceId> create_from(std::int64_t length, std::span<const GroupBlocks> blocks,
                                 const SequenceOptions& options);
  Result<SequenceId> import_sequence(std::int64_t num_tokens, const SequenceOptions& options,
                                     Urgency urgency);
  Status publish_import(SequenceId id);
  Status fail_import(SequenceId id);
  Result<HolderId> pin(SequenceId id, const PinOptions& options);
  Status check_pin(const PinOptions& options) const noexcept;
  Status unpin(HolderId pin, Ticket ticket);

  // ---- group_prefix.cpp: the prefix cache; only with one
  void fit_prefix(PrefixMatch& found) const noexcept;
  Status take_prefix(Sequence& s, const PrefixMatch& found);
  void attach_companions(Sequence& s, std::int32_t before) noexcept;
  void attach_state(const Sequence& s, std::int64_t length) noexcept;
  void ask_for_states(Sequence& s, std::int64_t prompt, const PrefixMatch& found) noexcept;
  /// The sequence `by` has taken all; kNoSequence: each growth of take_blocks its own.
  void note_evictions(SequenceId by = kNoSequence) noexcept;
  SequenceId taker_of(std::size_t i) const noexcept;
  /// The table whose blocks the prefix cache registers.
  Table& registered_table(SequenceId id) noexcept { return tables_of(id)[registered]; }
  const Table& registered_table(SequenceId id) const noexcept { return tables_of(id)[registered]; }
  /// The first block that a sequence of `length` > 0 tokens, all in whole blocks, needs in a group.
  std::int64_t first_needed(const Group& group, std::int64_t length) const noexcept {
    if (group.is_state) return length / list[registered].block_size - 1;
    return oldest_needed(group.retention, length) / group.block_size;
  }

  // ---- group_questions.cpp
  SequenceInfo info(SequenceId id, const Sequence& sequence) const;
  Result<BlockId> lookup(SequenceId id, std::int64_t index, std::int32_t group) const;
  Result<std::int64_t> slot_of(SequenceId id, std::int64_t index, std::int32_t group) const;
  /// Slots of all tables behind the ends of their sequences.
  std::int64_t waste_tokens() const noexcept { return end_slots - t.tokens * num_growing; }
  Result<std::int64_t> copy_blocks(const Table& table, std::span<BlockId> out) const;
  Status copy_rows(std::span<const SequenceId> ids, std::span<std::int32_t> entries,
                   std::int64_t stride, std::span<std::int32_t> lengths, std::int32_t group) const;
  Result<BatchView> view(std::span<const SequenceId> ids, std::int32_t group);
  Status check_invariants() const;

  // ---- parts
  Status check_group(std::int32_t group) const noexcept;
  /// The table ids of a sequence's present state; empty when there is none.
  std::span<const std::int32_t> present_state(SequenceId id, std::size_t group) const noexcept;
  std::size_t size() const noexcept { return num_groups; }
  static std::size_t slot_of(SequenceId id) noexcept {
    return static_cast<std::size_t>(SequenceTable::slot_of(id));
  }
  std::span<Table> tables_of(SequenceId id) noexcept {
    return {tables.data() + slot_of(id) * size(), size()};
  }
  std::span<Table> tables_of_pin(SequenceId number) noexcept {
    const std::size_t place = static_cast<std::size_t>(t.sequences.capacity()) + slot_of(number);
    return {tables.data() + place * size(), size()};
  }
  std::span<const Table> tables_of(SequenceId id) const noexcept {
    return const_cast<Groups*>(this)->tables_of(id);
  }
  std::span<const Table> tables_of_pin(SequenceId number) const noexcept {
    return const_cast<Groups*>(this)->tables_of_pin(number);
  }
  /// The tables of what a holder stands for.
  std::span<const Table> tables_of(const Sequence& sequence) const noexcept {
    return t.sequences.find(sequence.id) == &sequence ? tables_of(sequence.id)
                                                      : tables_of_pin(sequence.id);
  }
  /// The tokens of a sequence of `length` tokens in a group.
  std::int64_t tokens_in(const Group& group, SequenceId id, std::int64_t length) const noexcept {
    return group.is_cross ? cross_tokens[slot_of(id)] : length;
  }
  std::int64_t blocks_for(const Group& group, std::int64_t num_tokens) const noexcept {
    return group.block_of(num_tokens + group.block_size - 1);
  }
  /// The id by which kernels find a block.
  BlockId table_id(const Group& group, BlockId id) const noexcept {
    if (group.spec.ids_per_page == 0) return id;
    const BlockPlace place = pages_of_pool.place_of(id);
    return BlockId(static_cast<std::int32_t>(place.page * group.spec.ids_per_page +
                                             place.slot * group.spec.ids_per_block));
  }
  /// The blocks of a table that hold tokens of a sequence of `num_tokens` tokens.
  std::int64_t filled_blocks(const Group& group, const Table& table,
                             std::int64_t num_tokens) const noexcept {
    return std::min<std::int64_t>(blocks_for(group, num_tokens), table.tree.num_entries);
  }
  /// The longest length <= `length` that a sequence can be cut to.
  std::int64_t restorable(SequenceId id, std::int64_t length) const noexcept;
  /// The same without regard to states.
  std::int64_t restorable_tokens(std::span<const Table> its, std::int64_t length) const noexcept;
  Status check_restorable(SequenceId id, std::int64_t length) const noexcept;
  /// Gives `to` references on the blocks first .. end - 1 of `from`. On failure it has a part.
  Status share(const Table& from, Table& to, std::size_t group, HolderId holder, std::int64_t first,
               std::int64_t end);
  void add_blocks(Table& table, std::size_t group, const BlockId* ids,
                  const Generation* generations, std::int64_t count) noexcept;
  /// Releases the entries from `keep` on, last first. With 0 the table is empty then.
  Status release_tail(HolderId holder, Table& table, std::size_t group, std::int64_t keep,
                      Ticket ticket);
  /// Releases the entries in front of `first`.
  void release_front(HolderId holder, Table& table, std::int64_t first) noexcept;
  void place_tails(Sequence& sequence) noexcept;
  /// The last token is in block `index` of a table. Its tokens go to slot_bases + their position.
  void begin_block(const Sequence& sequence, std::size_t g, std::int64_t index) noexcept;
  /// What a Sequence has of these.
  struct Room {
    std::int32_t tokens;
    std::uint8_t num_behind;
  };
  Room room_of(const Sequence& sequence) const noexcept;
  void note_room(Sequence& sequence) noexcept;
  /// Whether a mirror lacks blocks of a table.
  static bool is_behind(const Group& group, const Table& table, std::int64_t length) noexcept {
    if (group.is_state) return false;
    return group.is_cross ? table.mirrored < table.tree.num_entries
                          : table.mirrored * group.block_size < length;
  }
  void set_mirrored(Sequence& sequence, std::size_t group, std::int32_t blocks) noexcept;
  /// Notes the length at which the next block leaves the front of a table, and the room with it.
  void note_release(Sequence& sequence) noexcept;
  void set_promise(SequenceId id, std::int64_t capacity) noexcept;
  void note_due(SequenceId id, std::size_t row) noexcept;
  void prefetch_due() const noexcept;
  template <class Visit>
  void for_each_leaving(SequenceId id, Visit visit) const;
  void release_old(Sequence& sequence) noexcept;
  Status fence_tail(const Sequence& sequence, const Table& table, std::int64_t index,
                    Ticket ticket);
  Status check_groups_of(std::span<const BlockId> ids, std::size_t g) const noexcept;
  Status check_readable(const GroupBlocks& blocks, std::size_t g) const noexcept;
  Status check_tenants(const GroupBlocks& blocks, std::size_t g, std::int64_t length,
                       const SequenceOptions& options) const noexcept;
  Status check_new_tables(std::span<const std::int64_t> absent, std::span<const std::int64_t> ends,
                          std::uint64_t subject) const noexcept;
  Status release_kept(SequenceId id, Ticket ticket);
  std::int64_t num_kept_of(SequenceId id) const noexcept;
  std::int64_t num_held_by(SequenceId id) const noexcept;

  template <class Demands>
  Status plan_append(const Demands& demands);
  void plan_growth(Sequence& sequence, std::int64_t capacity, std::size_t demand,
                   std::optional<Urgency> urgency, bool writes);
  bool fits(const Sequence& sequence, std::int64_t length) const noexcept;
  void resolve_shared_tails();
  Status check_table_pages();
  Status take_blocks(Urgency urgency);
  void apply_growths();
  void give_up_tail(const Grown& growth, std::size_t group, BlockId copy);
  struct Target;
  template <std::size_t kGrowing>
  [[gnu::always_inline]] inline void fill(Sequence& sequence, std::int64_t count,
                                          std::int64_t first, std::size_t row,
                                          const Target& target) noexcept;
  template <std::size_t kGrowing, class Demands>
  void fill_rows(const Demands& demands) noexcept;
  void fill_changed(Sequence& sequence, std::int64_t count, std::int64_t first,
                    std::size_t row) noexcept;
  void fill_blocks(const Sequence& sequence, std::size_t group, std::int64_t count,
                   std::int64_t* slot) noexcept;

  bool put_back(const KeptBlock& kept);
  void take_back_tokens(const Impl::Grown& its);
  void take_back_blocks(std::size_t growth);
  std::int64_t promised_pages(SequenceId id, std::size_t group,
                              std::int64_t capacity) const noexcept;
  std::int64_t missing_pages(std::size_t group, HolderId holder, std::int64_t most,
                             std::int64_t held) const noexcept;
  std::int64_t promised_pages(SequenceId id, std::int64_t capacity) const noexcept;
  void renew_promise(const Sequence& sequence) noexcept;

  void set_content(SequenceId id, BlockContent content);
  Status check_table(std::size_t group, const Table& table, Resource resource,
                     std::uint64_t subject) const;
  Status check_room(const Sequence& sequence) const;
  Status check_sequence(SequenceId id, const Sequence& sequence) const;
  bool mark_pages(std::int32_t page, std::int32_t level, std::int32_t leaves,
                  std::vector<bool>& marked) const;

  /// Calls visit(span of ids) for all blocks of a sequence or a pin.
  template <class Visit>
  void for_each_held(const Sequence& sequence, Visit visit) const {
    for (const Table& table : tables_of(sequence)) for_each_run(table, visit);
    if (t.sequences.find(sequence.id) != &sequence) return;
    for (std::size_t i = 0; i < num_kept; ++i) {
      if (kept[i].id == sequence.id) visit(std::span<const BlockId>(&kept[i].block, 1));
    }
  }
  /// The same for one table.
  template <class Visit>
  void for_each_run(const Table& table, Visit visit) const {
    for (std::int32_t i = table.first_held; i < table.tree.num_entries;) {
      const std::int32_t place = i & kPageMask;
      const std::int32_t run = std::min(kPageEntries - place, table.tree.num_entries - i);
      visit(std::span<const BlockId>(
          std::as_const(t.pages).ids(table.tree.leaf_page(t.pages, i >> kPageShift)) + place,
          static_cast<std::size_t>(run)));
      i += run;
    }
  }

  Impl& t;
  const PagePool& pages_of_pool;
  std::vector<Group> list;
  std::size_t num_groups;
  LazyArray<Table> tables;               // [max_sequences + max_pins, groups]
  LazyArray<std::int64_t> slot_bases;    // [max_sequences, groups] see begin_block
  LazyArray<std::int32_t> cross_tokens;  // [max_sequences]
  LazyArray<std::int64_t> promised;      // [max_sequences] capacity in tokens; 0: no promise
  std::size_t num_promises = 0;          // sequences with a promise
  LazyArray<std::int64_t> release_at;    // [max_sequences] see note_release
  LazyArray<std::uint32_t> due;          // rows of the last append with something to release
  std::size_t num_due = 0;
  bool settles_all = false;            // other rows may have something too
  std::int64_t end_slots = 0;          // of sequences: entries x block size, absent ones too
  std::int64_t num_growing = 0;        // groups that get a sequence's new tokens
  std::vector<std::uint32_t> growing;  // these groups
  std::vector<std::uint32_t> leaving;  // those of them whose oldest blocks leave
  bool is_settled = true;              // no append waits for settle
  std::size_t registered = 0;          // the group whose blocks the prefix cache registers
  LazyArray<BlockId> evicted_ids;      // [num_blocks] with a prefix cache

  LazyArray<Grown> growths;
  LazyArray<TableGrowth> table_growths;  // [growths, groups]
  std::size_t num_growths = 0;           // valid until the next append
  std::size_t first_growth = 0;          // of the current call
  LazyArray<HolderDemand> demands;
  LazyArray<std::int32_t> growth_of_demand;  // of the manager's demands
  std::size_t num_demands = 0;
  LazyArray<SharedTail> shared_tails;
  std::size_t num_shared_tails = 0;
  LazyArray<BlockCopy> copies;
  LazyArray<std::int32_t> copy_groups;
  std::size_t num_copies = 0;
  LazyArray<std::int64_t> slots;  // [groups, tokens]
  LazyArray<KeptBlock> kept;
  std::size_t num_kept = 0;
  LazyArray<BlockId> view_entries;
  std::unique_ptr<States> states;  // null: no group is of states
};

}  // namespace kvarena
