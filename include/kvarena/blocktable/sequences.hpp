#pragma once

/// @file
/// What BlockTables takes and returns: options, demands, figures. Plain values; copies may be read
/// from any thread.

#include "kvarena/allocator/accounts.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/blocktable/prefix.hpp"
#include "kvarena/blocktable/table_groups.hpp"

#include <cstdint>
#include <optional>
#include <span>

namespace kvarena {

/// Options of block tables.
struct BlockTablesOptions {
  std::int32_t block_size_tokens = 16;  ///< tokens in a block, 1 .. 65536
  std::int32_t max_sequences = 1024;    ///< sequences at a time; each needs a holder of the manager
  std::int64_t max_table_pages = 0;  ///< pages of kPageEntries entries; 0: enough for every block
                                     ///< to be in BlockManager::kSharers tables
  std::int32_t max_pins = 64;  ///< pins at a time, 0 .. 2^24; each needs a holder of the manager
  std::int64_t max_append_tokens = 1 << 20;  ///< new tokens in one append call, over all demands
  bool report_rows = false;  ///< whether append fills AppendResult::rows, for a mirror of the
                             ///< tables
  bool can_undo = false;     ///< whether undo_append works; then blocks copied on write stay held
                             ///< until settle_append, the next append (refused or not), or the end
                             ///< of their sequence
  /// Copied. The groups of the manager, in its order: every sequence has a table for each. Then
  /// block_size_tokens has no meaning, and settle_append, or the next append, ends a step: it
  /// releases the blocks that no later token reads. None: the manager has no groups, and a sequence
  /// has one table.
  std::span<const TableGroup> groups{};
  /// With groups of states: settle_append keeps the states at the multiples of this length as
  /// checkpoints; with a prefix cache also those behind the last full block of a prompt
  /// (SequenceOptions::tokens, adopt) and where PrefixMatch::registered_tokens ended. Those inside
  /// a step are extras of StateSlots, as far as pages can be had above the watermark. A multiple of
  /// the block sizes of the other groups; 0: none.
  std::int64_t checkpoint_every_tokens = 2048;
  PrefixOptions prefix_cache{};  ///< off: nothing of it costs memory or time
};

/// Options of a new sequence.
struct SequenceOptions {
  std::int64_t max_length_tokens = 0;  ///< 0: no maximum below the 2^31 - 1 of any length
  std::int64_t since_ns = 0;           ///< as HolderInfo::since_ns
  std::int64_t deadline_ns = 0;        ///< as HolderInfo::deadline_ns
  /// The owner of the content: the engine's own id of a request or a tenant. explain(), `/stats`,
  /// health and logs show it beside the sequence. 0: the owner is the sequence's own id, or for a
  /// fork the owner of its parent. Sequence ids start at 2^24, so smaller numbers never equal one.
  std::uint64_t owner = 0;
  std::int32_t cross_tokens = 0;  ///< tokens of an encoder that the layers of cross groups read;
                                  ///< their blocks come with the first append, or with
                                  ///< reserve_capacity. A fork has its parent's
  /// With a prefix cache: the tokens that the sequence will have first. It begins with the longest
  /// published prefix of them. Borrowed for the call. Only create_sequence takes tokens. An import
  /// takes a salt and extra keys too; a fork takes neither, it has those of its parent.
  std::span<const std::int32_t> tokens{};
  std::uint64_t salt = 0;                  ///< the tenant
  std::span<const ExtraKey> extra_keys{};  ///< as PrefixQuery::extra_keys
};

/// What a pin holds, and who holds it.
struct PinOptions {
  std::int64_t first_block = 0;  ///< of the sequence's table
  std::int64_t num_blocks = -1;  ///< from there on; -1: all that hold tokens
  std::uint64_t owner = 0;       ///< as HolderInfo::owner; 0: the owner of the sequence
  const char* purpose = "pin";   ///< static string, shown in reports
  std::int64_t since_ns = 0;     ///< as HolderInfo::since_ns
  std::int64_t deadline_ns = 0;  ///< as HolderInfo::deadline_ns
  std::int32_t group = -1;  ///< with groups: whose blocks, from first_block on those that are kept;
                            ///< -1: all blocks of all groups, without a range
};

/// The state of a sequence whose tokens others write.
enum class ImportState : std::uint8_t {
  none,     ///< no import, or one that was published: its tokens may be read
  filling,  ///< others write its blocks
  failed,   ///< others gave up; only destroy is left
};

/// The growth of one sequence, in tokens.
struct AppendDemand {
  SequenceId sequence;               ///< an existing sequence, at most once in a call
  std::int32_t num_tokens = 1;       ///< >= 0
  std::optional<Urgency> urgency{};  ///< of the blocks that it takes; none: that of the call
  /// With a prefix cache: the new tokens, num_tokens of them, or none. Borrowed for the call.
  std::span<const std::int32_t> tokens{};
};

/// The facts about the sequence of a demand that a mirror of the tables needs.
struct AppendedRow {
  std::int32_t slot = 0;  ///< the sequence's place among the sequences, the same for its whole life
  std::int32_t length_tokens = 0;       ///< tokens, with the new ones
  std::int32_t num_new_tokens = 0;      ///< how many of the last tokens are new
  std::int32_t num_changed_blocks = 0;  ///< the result of changed_blocks(slot); with groups the
                                        ///< number of tables of which the mirror lacks blocks
};

/// The changes of an append. The spans are valid until the next mutating call.
struct AppendResult {
  std::span<const std::int64_t> slots;  ///< [total tokens] slot of each new token, demand by
                                        ///< demand: block * block_size + offset
  std::span<const BlockCopy> copies;    ///< block copies that the device must make before it writes
  std::int64_t new_blocks = 0;          ///< blocks taken, with the targets of copies
  std::span<const AppendedRow> rows;    ///< demand by demand; empty unless report_rows is set
  /// With groups, `slots` has the slots of all tokens once for each group, group by group: [groups,
  /// total tokens], -1 in groups of encoders and states. Slots and copies have table ids
  /// (TableGroup), and copy_groups names the group of each copy. A copy of a part of a state whose
  /// source is kNoBlock clears its target. Without groups it is empty.
  std::span<const std::int32_t> copy_groups{};
  std::span<const StateSlots> states{};  ///< one for each group of states, in their order
};

/// Figures over all tables.
struct TableStats {
  std::int64_t sequences = 0;     ///< existing sequences
  std::int64_t tokens = 0;        ///< sum of the lengths
  std::int64_t entries = 0;       ///< block references in tables; a shared block counts each time
  std::int64_t waste_tokens = 0;  ///< slots in tables behind the end of their sequence
  std::int64_t pages_used = 0;    ///< pages of entries in use
  std::int64_t pages_total = 0;   ///< pages of entries there are
  std::uint64_t sequences_ever = 0;   ///< created since the start
  std::uint64_t copies_on_write = 0;  ///< since the start
  std::int64_t pins = 0;              ///< existing pins
  std::int64_t pinned_entries = 0;    ///< block references of pins; not part of `entries`
};

/// One sequence's figures.
struct SequenceInfo {
  std::int64_t length_tokens = 0;                ///< tokens
  std::int64_t num_blocks = 0;                   ///< entries in its tables, with reserved capacity
  std::int64_t max_length_tokens = 0;            ///< 0: none
  std::int64_t waste_tokens = 0;                 ///< slots in its tables behind its end
  HolderId holder;                               ///< the holder of its block references
  std::uint64_t owner = 0;                       ///< whose content it is; never 0
  ImportState import_state = ImportState::none;  ///< whether its tokens may be read
  std::int32_t cross_tokens = 0;                 ///< tokens of its encoder
  std::int64_t known_tokens = 0;       ///< leading tokens whose values the prefix cache was given
  std::int64_t registered_blocks = 0;  ///< leading blocks that the prefix cache knows
  std::int64_t published_blocks = 0;   ///< of these, those that publish has passed
};

}  // namespace kvarena
