#pragma once

/// @file
/// The figures a BlockManager answers with. Plain values; copies may be read from any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena {

/// Where a block is.
enum class BlockState : std::uint8_t {
  free,        ///< nobody holds it, nothing is kept in it
  referenced,  ///< at least one reference that is not fenced
  fenced,      ///< only references whose ticket has not retired
  evictable,   ///< nobody holds it, its content is cached
  offline,     ///< out of service
};

/// "free", "referenced", ...
KVARENA_EXPORT std::string_view name_of(BlockState state) noexcept;

/// What is known of a block's content, apart from its state. Only a published block becomes
/// evictable when its last reference goes; any other becomes free, and its content is forgotten.
enum class BlockContent : std::uint8_t {
  unwritten,      ///< nobody was promised anything but the block's holders
  being_written,  ///< a holder is filling it for others to find; not yet to be read
  published,      ///< complete, for whoever finds it: its bytes are never rewritten
  failed,         ///< the writing failed; never to be served
};

/// "unwritten", "being_written", ...
KVARENA_EXPORT std::string_view name_of(BlockContent content) noexcept;

/// What an allocation may use up.
enum class Urgency : std::uint8_t {
  growth,     ///< a running sequence grows: all that is available and not reserved by others
  admission,  ///< new work: the watermark stays untouched
};

/// Counts of one pool.
struct BlockStats {
  std::int64_t num_blocks = 0;      ///< all
  std::int64_t free = 0;            ///< by state
  std::int64_t referenced = 0;      ///< by state
  std::int64_t fenced = 0;          ///< by state
  std::int64_t evictable = 0;       ///< by state
  std::int64_t offline = 0;         ///< by state
  std::int64_t reserved = 0;        ///< promised to holders, still among free + evictable
  std::int64_t watermark = 0;       ///< what admission leaves
  std::int64_t holders = 0;         ///< registered
  std::int64_t references = 0;      ///< of all holders, fenced ones excluded
  std::int64_t fence_entries = 0;   ///< references pending on tickets
  std::int64_t peak_allocated = 0;  ///< the most blocks that were not free at any time
  std::uint64_t holders_ever = 0;   ///< registered since create
  std::uint64_t allocations = 0;    ///< blocks handed out since create
  std::uint64_t releases = 0;       ///< references given up since create
  std::uint64_t evictions = 0;      ///< evictable blocks handed out since create
  std::uint64_t exhaustions = 0;    ///< calls refused for want of blocks since create

  /// total - free: blocks that are not on the free list.
  std::int64_t allocated() const noexcept { return num_blocks - free; }
  /// free + evictable.
  std::int64_t available() const noexcept { return free + evictable; }
  /// free + fenced + evictable + referenced + offline == num_blocks.
  bool balanced() const noexcept {
    return free + fenced + evictable + referenced + offline == num_blocks;
  }
};

/// One holder and what it holds.
struct HolderReport {
  HolderId holder;               ///< id
  std::uint64_t number = 0;      ///< the caller's number of it, e.g. a sequence id
  std::uint64_t owner = 0;       ///< for whom it holds; 0: not told
  std::string_view purpose;      ///< as registered
  std::int64_t references = 0;   ///< block references
  std::int64_t reserved = 0;     ///< promised blocks
  std::int64_t since_ns = 0;     ///< as registered
  std::int64_t deadline_ns = 0;  ///< as registered
};

/// Why a request does or does not fit.
struct Explanation {
  static constexpr std::size_t kMaxHolders = 8;  ///< largest holders listed

  std::int64_t requested = 0;         ///< blocks asked for
  Urgency urgency = Urgency::growth;  ///< for what
  bool fits = false;                  ///< whether they could be had
  std::int64_t usable = 0;            ///< what this request may use
  std::int64_t promised = 0;          ///< of these, what was reserved for those who ask
  std::int64_t missing = 0;           ///< requested - usable, at least 0
  BlockStats stats;                   ///< the accounts
  std::int64_t fenced_returning = 0;  ///< blocks that come back when every open ticket has retired
  Ticket oldest_open_ticket;          ///< the ticket to wait for first; kNoTicket when none is open
  std::array<HolderReport, kMaxHolders> largest{};  ///< by references + reserved, largest first,
                                                    ///< then by id; those with neither are left out
  std::size_t num_largest = 0;                      ///< used entries of `largest`
  /// Blocks that come back at once when largest[0] to largest[i] give up all that they hold: a
  /// block that others share stays. -1: not known (a BlockManager does not know which blocks a
  /// holder has; BlockTables::explain does).
  std::array<std::int64_t, kMaxHolders> returning = [] {
    std::array<std::int64_t, kMaxHolders> unknown{};
    unknown.fill(-1);
    return unknown;
  }();
};

/// "sequence 12 of owner 7": who a holder is, for a line of text.
KVARENA_EXPORT std::string to_string(const HolderReport& holder);
/// The explanation as lines for a person, ending with what would make the request fit.
KVARENA_EXPORT std::string to_string(const Explanation& explanation) noexcept;

/// Numbers of the invariants that check_invariants proves, in Status::native.
enum class Invariant : std::int32_t {
  counts_balance = 1,  ///< free + fenced + evictable + referenced + offline == num_blocks
  state_counts = 2,    ///< a recount of blocks by state equals the running counters
  free_list = 3,       ///< the free list names each free block once and no other
  evictable_list = 4,  ///< the evictable list is doubly linked, whole, and names only such blocks
  fence_entries = 5,   ///< each fenced reference belongs to one open ticket and one block
  holder_references = 6,  ///< references of all blocks equal the holders' totals
  reservations = 7,       ///< reserved equals the holders' sum and is at most free + evictable
  table_entries = 8,      ///< every table entry is a held block of the right generation
  table_counts = 9,       ///< entries of a sequence equal its holder's references
  table_pages = 10,       ///< every page belongs to one sequence or the free pages
  sequence_length = 11,   ///< a sequence's tokens fit its blocks
};

}  // namespace kvarena
