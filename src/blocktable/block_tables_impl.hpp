#pragma once

/// @file
/// The state of BlockTables, shared by its sources.

#include "base/lazy_array.hpp"
#include "blocktable/page_tree.hpp"
#include "blocktable/prefix_cache.hpp"
#include "blocktable/sequence_table.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

namespace kvarena {

struct BlockTables::Impl {
  struct Groups;  // group_tables.hpp

  Impl(BlockManager& block_manager, const BlockTablesOptions& options);
  ~Impl();

  std::int64_t blocks_for(std::int64_t num_tokens) const noexcept {
    return (num_tokens + block_size - 1) / block_size;
  }
  /// Sets next_slot and room after the length or the last filled block has changed.
  void place_tail(Sequence& sequence) noexcept;
  /// Releases the entries from `keep` on, last first. The caller has checked that this cannot fail.
  Status release_entries(Sequence& sequence, std::int64_t keep, Ticket ticket);
  /// Gives `ticket` its own reference on an entry's block. The caller has checked the ticket.
  Status fence_entry(const Sequence& sequence, std::int64_t index, Ticket ticket);
  /// Checks whether `entries` references can be given up against `ticket`.
  Status check_ticket(Ticket ticket, std::int64_t entries) const noexcept;
  void erase(SequenceId id, Sequence& sequence) noexcept;

  /// Adds a sequence. Without an owner in its options, its owner is `parent_owner`, or its own id
  /// when that is 0.
  Result<SequenceId> insert(const SequenceOptions& options, std::uint64_t parent_owner);
  /// Adds a sequence of one or of several groups.
  Result<SequenceId> insert_any(const SequenceOptions& options);
  /// Checks what insert checks first: the maximum length, and that there is room for a sequence.
  Status check_insert(const SequenceOptions& options) const noexcept;
  Status check_sequence(SequenceId id, const Sequence& sequence) const;
  Status check_prefix() const;
  Status check_entries(const Sequence& sequence, std::int64_t kept, Resource resource,
                       std::uint64_t subject) const;
  /// Gives `child` references on the blocks [first, end) of `parent`. On failure it has a part.
  Status share_blocks(const Sequence& parent, Sequence& child, std::int64_t first,
                      std::int64_t end);
  Status check_pages_of_new(std::int64_t num_entries, std::uint64_t subject) const noexcept;
  static Status check_imported(SequenceId id, const Sequence& sequence) noexcept {
    return sequence.import_state == ImportState::none
               ? Status{}
               : failed_precondition(Resource::sequence, id.value,
                                     static_cast<std::uint64_t>(sequence.import_state));
  }

  // imports.cpp, pins.cpp
  Status check_filling(SequenceId id, const Sequence* sequence) const noexcept;
  void set_content(const Sequence& sequence, BlockContent content);
  const Sequence* pin_of(HolderId holder) const noexcept;
  Result<HolderId> register_pin(SequenceId number, SequenceId of, const PinOptions& options);

  // block_tables_checks.cpp
  Status check_group(std::int32_t group) const noexcept;
  Result<std::int64_t> copy_blocks(const Sequence& sequence, std::span<BlockId> out) const;
  const Sequence* sequence_of(const HolderReport& holder) const noexcept;
  template <class Visit>
  void for_each_held(const HolderReport& holder, Visit visit) const;
  void count_returning(Explanation& explanation) const noexcept;

  /// A demand of the current call that takes blocks.
  struct Growth {
    std::size_t demand = 0;  ///< index of the demand
    Sequence* sequence = nullptr;
    SequenceId id{};
    std::int64_t old_entries = 0;      ///< entries of its table before the call
    std::int64_t new_entries = 0;      ///< blocks behind the table's end
    bool copies_tail = false;          ///< whether its last block is copied first
    BlockId tail{};                    ///< its last block
    std::int64_t promised = 0;         ///< can_undo: blocks reserved for its holder before
    std::optional<Urgency> urgency{};  ///< of its demand
  };
  /// Orders the growths that may copy their last block: by block, then by demand.
  struct SharedTail {
    BlockId block;
    std::uint32_t growth;
    friend auto operator<=>(const SharedTail&, const SharedTail&) = default;
  };
  /// can_undo: a sequence that the last append grew, with its old length.
  struct Grown {
    SequenceId id;
    std::int32_t old_length;
  };
  /// can_undo: a block that the last append copied. Its sequence still holds it.
  struct KeptTail {
    SequenceId id;
    std::int32_t index;  ///< in its table; the copy has this index now
    BlockId block;
    Generation generation;
    BlockId copy;
  };

  // append.cpp
  template <class Demands>
  Result<AppendResult> append(const Demands& demands, Urgency urgency);
  template <class Demands>
  Status plan_append(const Demands& demands);
  Growth growth_of(SequenceId id, Sequence& sequence, std::int64_t capacity, std::size_t demand);
  bool owns_tail(Sequence& sequence);
  void resolve_shared_tails();
  bool blocks_suffice(std::span<const Growth> its, Urgency urgency) const;
  Status check_pages(std::span<const Growth> its, Urgency urgency);
  Status take_blocks(std::span<Growth> its, Urgency urgency);
  void name_takers(std::span<const Growth> its, std::int64_t evicted) noexcept;
  void apply_growths(std::span<const Growth> its);
  void give_up_tail(const Growth& growth, BlockId copy);
  std::int64_t fill_blocks(Sequence& sequence, std::int64_t count, std::int64_t* slot) noexcept;
  void fill(Sequence& sequence, std::int64_t count, std::int64_t*& slot) noexcept;
  template <bool kReportsRows, class Demands>
  void fill_all(const Demands& demands) noexcept;
  Status fail(std::int64_t demand, Status status) noexcept {
    failed_demand = demand;
    return status;
  }

  // prefix_tables.cpp
  /// The manager's claim_serial, without the claims that publish and checkpoints have added: each
  /// is on a full block or a state of the sequence that they named, whose claims_seen they reset.
  std::uint64_t claims_of_others() const noexcept { return manager->claim_serial() - own_claims; }
  void publish(Sequence& sequence, std::int64_t length) noexcept;
  PrefixCache::Owner prefix_owner(Sequence& sequence) noexcept {
    const auto slot = static_cast<std::uint32_t>(SequenceTable::slot_of(sequence.id));
    return {slot, sequence, pages, groups ? registered_tree(sequence) : sequence.table};
  }
  PageTree& registered_tree(Sequence& sequence) noexcept;
  /// What the prefix cache knows of a sequence; without one, nothing.
  const PrefixChain& chain_of(SequenceId id) const noexcept {
    static constexpr PrefixChain kUnknown;
    if (prefix == nullptr) return kUnknown;
    return prefix->chain(static_cast<std::uint32_t>(SequenceTable::slot_of(id)));
  }
  bool has_blocks(const Sequence& sequence) const noexcept;
  /// How a sequence comes to be.
  enum class Origin : std::uint8_t { created, imported, forked };
  Status check_prefix_options(const SequenceOptions& options, Origin origin) const noexcept;
  Result<SequenceId> create_with_prefix(const SequenceOptions& options);
  Result<PrefixMatch> find_prefix(const PrefixQuery& query, std::uint64_t subject,
                                  std::int64_t max_length);
  bool has_room_for_part(const PrefixMatch& found, std::int64_t num_tokens,
                         std::int64_t revived) const noexcept;
  Status take_prefix(Sequence& sequence, std::span<const std::int32_t> its_tokens,
                     const PrefixMatch& found);
  std::int64_t missing_of_floors(std::span<const Growth> its, Urgency urgency) const noexcept;
  void count_salts(Explanation& explanation, bool scans) noexcept;
  void fork_prefix(Sequence& parent, Sequence& child) noexcept;
  // tell_tokens.hpp, tell_tokens.cpp
  /// The next token of a sequence, which fills a block.
  struct TailToken {
    Sequence* sequence;
    std::int32_t token;
  };
  /// So many of a decode step wait until the blocks that they fill are registered together.
  static constexpr std::size_t kMostFillers = 16;
  template <class Demands>
  void tell_tokens(const Demands& demands) noexcept;
  void fill_tails(std::span<const TailToken> fillers) noexcept;
  void tell_tokens(SequenceId id, std::span<const std::int32_t> values) noexcept;

  // undo_append.cpp
  void settle() noexcept;
  void undo_append(bool copies_are_made);
  void take_back_tokens(const Grown& its);
  void take_back_blocks(const Growth& growth);
  void renew_promise(const Growth& growth);
  bool put_back(const KeptTail& tail);
  Status release_kept(SequenceId id, Ticket ticket);
  std::int64_t num_kept_of(SequenceId id) const noexcept;

  BlockManager* manager;
  std::int64_t block_size;
  std::int64_t max_append_tokens;
  bool report_rows;
  bool can_undo;
  SequenceTable sequences;
  SequenceTable pins;
  LazyArray<std::uint64_t> owners;  // as in SequenceInfo, by slot; an append does not read them
  TablePages pages;
  std::unique_ptr<PrefixCache> prefix;  // null: there is none
  std::int64_t tokens = 0;              // sum of lengths
  std::int64_t entries = 0;             // sum of table entries
  std::int64_t pinned_entries = 0;      // of pins; `entries` does not count them
  std::uint64_t sequences_ever = 0;
  std::uint64_t pins_ever = 0;
  std::uint64_t copies_ever = 0;
  std::uint64_t calls = 0;         // stamps the sequences of a call
  std::uint64_t claim_serial = 0;  // claims_of_others() at the current append
  std::uint64_t own_claims = 0;    // see claims_of_others
  std::int64_t failed_demand = -1;
  std::int64_t max_cross_tokens = 0;  // of a sequence
  std::unique_ptr<Groups> groups;     // null: one table a sequence
  bool is_undoable = false;  // grown and growths belong to an append that may be taken back

  // Scratch memory of one call, sized at create.
  LazyArray<std::int64_t> slots;
  LazyArray<AppendedRow> rows;  // written only when rows are reported
  LazyArray<BlockId> new_ids;
  LazyArray<Generation> new_generations;
  LazyArray<Growth> growths;  // valid until the next append
  std::size_t num_growths = 0;
  LazyArray<HolderDemand> holder_demands;
  LazyArray<std::int32_t> sharers;  // most_sharers: by block, all 0 between calls
  LazyArray<SharedTail> shared_tails;
  std::size_t num_shared_tails = 0;
  LazyArray<BlockCopy> copies;
  std::size_t num_copies = 0;
  std::int64_t num_new_blocks = 0;
  std::int64_t num_new_tokens = 0;
  LazyArray<Grown> grown;
  std::size_t num_grown = 0;
  LazyArray<KeptTail> kept_tails;
  std::size_t num_kept_tails = 0;
  // The arrays behind the last view.
  LazyArray<std::int32_t> view_pages;
  LazyArray<std::int64_t> view_row_offsets;
  LazyArray<std::int32_t> view_lengths;
  LazyArray<std::int32_t> view_num_blocks;
};

}  // namespace kvarena
