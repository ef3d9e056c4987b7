#pragma once

/// @file
/// The figures that a BlockManager returns. Plain values; copies may be read from any thread.

#include "kvarena/allocator/page_pool.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena {

/// The state of a block.
enum class BlockState : std::uint8_t {
  free,        ///< nobody holds it, and its content is not kept
  referenced,  ///< it has at least one reference that is not fenced
  fenced,      ///< it has only references whose ticket has not retired
  evictable,   ///< nobody holds it, and its content is cached
  offline,     ///< out of service
  absent,      ///< its page is not carved into blocks of its group
};

/// Returns "free", "referenced", ...
KVARENA_EXPORT std::string_view name_of(BlockState state) noexcept;

/// The known state of a block's content, apart from the block's state. When the last reference
/// goes, a published block becomes evictable. Any other block becomes free, and its content is
/// forgotten.
enum class BlockContent : std::uint8_t {
  unwritten,      ///< only the block's holders rely on its bytes
  being_written,  ///< a holder writes content that others may find later; not yet readable
  published,      ///< complete and open to others: its bytes are never rewritten
  failed,         ///< writing it failed; it is never given to a reader
};

/// Returns "unwritten", "being_written", ...
KVARENA_EXPORT std::string_view name_of(BlockContent content) noexcept;

/// The urgency of an allocation, which decides the blocks that it may use.
enum class Urgency : std::uint8_t {
  growth,     ///< a running sequence grows: it may use all available blocks that others have not
              ///< reserved
  admission,  ///< new work: the watermark stays available
};

/// Counts of one pool.
struct BlockStats {
  std::int64_t num_blocks = 0;      ///< all blocks
  std::int64_t free = 0;            ///< by state
  std::int64_t referenced = 0;      ///< by state
  std::int64_t fenced = 0;          ///< by state
  std::int64_t evictable = 0;       ///< by state
  std::int64_t offline = 0;         ///< by state; with groups, only those of pages in service
  std::int64_t reserved = 0;        ///< promised to holders; still part of free + evictable
  std::int64_t watermark = 0;       ///< blocks that admission leaves available
  std::int64_t holders = 0;         ///< registered holders
  std::int64_t references = 0;      ///< of all holders, without fenced ones
  std::int64_t fence_entries = 0;   ///< references that wait for tickets
  std::int64_t peak_allocated = 0;  ///< the most blocks that were not free at one time
  std::uint64_t holders_ever = 0;   ///< registered since create, also by calls that were refused
  std::uint64_t allocations = 0;    ///< blocks handed out since create
  std::uint64_t releases = 0;       ///< references given up since create
  std::uint64_t evictions = 0;      ///< evictable blocks handed out since create
  std::uint64_t exhaustions = 0;    ///< calls refused since create because blocks were missing

  /// num_blocks - free: the blocks that are not on the free list.
  std::int64_t allocated() const noexcept { return num_blocks - free; }
  /// free + evictable.
  std::int64_t available() const noexcept { return free + evictable; }
  /// free + fenced + evictable + referenced + offline == num_blocks.
  bool balanced() const noexcept {
    return free + fenced + evictable + referenced + offline == num_blocks;
  }
};

/// One holder and its figures.
struct HolderReport {
  HolderId holder;               ///< id
  std::uint64_t number = 0;      ///< the caller's number for it, for example a sequence id
  std::uint64_t owner = 0;       ///< for whom it holds, for example a request id; 0: unknown
  std::string_view purpose;      ///< as registered
  std::int64_t references = 0;   ///< block references that it has
  std::int64_t reserved = 0;     ///< blocks promised to it
  std::int64_t since_ns = 0;     ///< as registered
  std::int64_t deadline_ns = 0;  ///< as registered
  std::int64_t bytes = 0;        ///< of the blocks that it references; 0 in a pool without groups
};

/// Cached blocks of one salt (PrefixQuery::salt).
struct SaltShare {
  std::uint64_t salt = 0;   ///< the tenant
  std::int64_t blocks = 0;  ///< evictable
};

/// Why a request fits or does not fit.
struct Explanation {
  static constexpr std::size_t kMaxHolders = 8;  ///< length of the list of largest holders
  static constexpr std::size_t kMaxSalts = 4;    ///< length of the list of salts

  std::int64_t requested = 0;         ///< blocks asked for
  Urgency urgency = Urgency::growth;  ///< what the blocks are for
  bool fits = false;                  ///< whether the blocks can be had
  std::int64_t usable = 0;            ///< blocks that this request may use
  std::int64_t promised = 0;  ///< the part of `usable` that was reserved for the holders that ask
  std::int64_t missing = 0;   ///< that must come back before it fits
  BlockStats stats;           ///< the counts of the pool
  std::int64_t fenced_returning = 0;  ///< blocks that come back when every open ticket has retired
  Ticket oldest_open_ticket;          ///< the ticket to wait for first; kNoTicket when none is open
  std::array<HolderReport, kMaxHolders> largest{};  ///< by references + reserved, largest first,
                                                    ///< then by id; holders with neither are left
                                                    ///< out
  std::size_t num_largest = 0;                      ///< used entries of `largest`
  /// The number of blocks that come back at once when largest[0] to largest[i] release all that
  /// they hold. A block that others share does not come back. -1: unknown. A BlockManager does not
  /// know which blocks a holder has, so it returns -1; BlockTables::explain knows them.
  std::array<std::int64_t, kMaxHolders> returning = [] {
    std::array<std::int64_t, kMaxHolders> unknown{};
    unknown.fill(-1);
    return unknown;
  }();
  /// What eviction would give, and from whom: by blocks, most first, then by salt. BlockTables with
  /// a prefix cache fills it, with accounts (PrefixOptions::max_accounts) for the salts that have
  /// one; salts without cached blocks are left out.
  std::array<SaltShare, kMaxSalts> evictable_salts{};
  std::size_t num_salts = 0;  ///< used entries of `evictable_salts`
  /// Evictable blocks of all others; all of them without a prefix cache.
  std::int64_t evictable_of_others = 0;
  /// Of a pool with groups. `requested`, `usable`, `promised`, `missing` and `fenced_returning` are
  /// pages then. A pool without groups has num_groups 0.
  PageStats pages;
  std::array<GroupStats, kMaxBlockGroups> groups{};  ///< by group
  std::array<PagedKind, kMaxBlockGroups> kinds{};    ///< what the layers of each group keep
  std::size_t num_groups = 0;                        ///< used entries of `groups` and `kinds`
};

/// Returns the name of a holder for a line of text: "sequence 12 of owner 7".
KVARENA_EXPORT std::string to_string(const HolderReport& holder);
/// Returns the explanation as lines for a person. The last line says what would make the request
/// fit.
KVARENA_EXPORT std::string to_string(const Explanation& explanation) noexcept;

/// Numbers of the invariants that check_invariants proves. Status::native has the number.
enum class Invariant : std::int32_t {
  counts_balance = 1,     ///< free + fenced + evictable + referenced + offline == num_blocks
  state_counts = 2,       ///< a recount of blocks by state equals the running counters
  free_list = 3,          ///< the free list names each free block once and no other
  evictable_list = 4,     ///< the evictable list is whole, doubly linked, and names only evictable
                          ///< blocks
  fence_entries = 5,      ///< each fenced reference belongs to one open ticket and one block
  holder_references = 6,  ///< references of all blocks equal the holders' totals
  reservations = 7,       ///< reserved equals the sum over holders and is at most free + evictable
  table_entries = 8,      ///< every table entry is a held block of the right generation
  table_counts = 9,       ///< entries of a sequence equal its holder's references
  table_pages = 10,       ///< every page belongs to one sequence or to the free pages
  sequence_length = 11,   ///< a sequence's tokens fit its blocks
  pages_balance = 12,     ///< free + of groups + offline == num_pages
  group_counts = 13,      ///< the blocks of a group by state are those of its pages
  page_lists = 14,        ///< every page is in the lists that its blocks call for, and in no other
  prefix_blocks = 15,     ///< each registered block is full and has the hash of exactly its
                          ///< tokens, extra keys and parent
  prefix_evictable = 16,  ///< every evictable block is registered and published
  prefix_counts = 17,     ///< the prefix cache's figures and links are those of its blocks
};

}  // namespace kvarena
