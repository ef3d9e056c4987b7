#pragma once

/// @file
/// What the prefix cache of BlockTables takes and returns. Sequences that begin with the same
/// tokens share blocks: each full block is registered under a hash of its salt, its tokens, all
/// tokens before it and its extra keys. A hit is verified: the stored tokens, extra keys and parent
/// block are compared too, so two contents with one hash are never mistaken for each other.
///
/// A salt is a tenant. Blocks of one salt are never matched from another. Reasons such as
/// other_salt are for the operator of all tenants: a tenant who saw them would learn what others
/// have computed.
///
/// Plain values; copies may be read from any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/blocktable/extra_key.hpp"
#include "kvarena/blocktable/prefix_events.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvarena {

/// What is done when two sequences compute the same block at the same time.
enum class DuplicateRule : std::uint8_t {
  duplicate,  ///< each computes and keeps its own block; only the first is registered
  share,      ///< each computes its own; at publish, the second gives its own up for the first.
              ///< While a ticket is open it keeps those that it publishes then, for good: work on
              ///< another stream may read them
  wait,       ///< create_sequence and adopt refuse: failed_precondition (content), until the first
              ///< is published. They know of it once its tokens are told: with the append that
              ///< computes them. Before that, and without told tokens, both compute
};

/// Why a match covers no more tokens.
enum class PrefixStop : std::uint8_t {
  capped,             ///< one token is left to compute, so the last full block is not looked for
  less_than_a_block,  ///< the tokens that are left do not fill a block
  never_seen,         ///< no such block is known, or yours was given up before it was published
  evicted,            ///< the block was registered and is gone: PrefixMatch::removal says why
  other_salt,         ///< the block is known under another salt
  other_extra_key,    ///< the block is known under this salt with other extra keys
  not_yet_published,  ///< another sequence computes it now
  other_group,        ///< with groups of layers: a longer prefix is known
                      ///< (PrefixMatch::registered_tokens), but another group has not what a
                      ///< sequence needs there, a window's blocks or a state
};
inline constexpr std::size_t kNumPrefixStops = 8;  ///< values of PrefixStop

/// Why a block is not registered any more.
enum class PrefixRemoval : std::uint8_t {
  evicted,  ///< an allocation took it
  /// A block before it went, so that nothing could match it. One call can evict both: the manager
  /// then counts two evictions, and this one is here.
  parent_removed,
  forgotten,  ///< forget, forget_salt or forget_all
  aborted,    ///< it was cut, undone or its sequence ended before it was published
  lost,       ///< others took it: a quarantine, set_content, or an allocation of the manager
  over_cap,   ///< a newer block of its salt took its place: SaltLimits::cap_blocks
};
inline constexpr std::size_t kNumPrefixRemovals = 6;  ///< values of PrefixRemoval

/// Returns "capped", "less_than_a_block", ...
KVARENA_EXPORT std::string_view name_of(PrefixStop stop) noexcept;
/// Returns "evicted", "parent_removed", ...
KVARENA_EXPORT std::string_view name_of(PrefixRemoval removal) noexcept;

/// Options of the prefix cache of some tables.
struct PrefixOptions {
  static constexpr std::int32_t kMostExtraKeys = 31;         ///< largest max_extra_keys
  static constexpr std::int32_t kMostAccounts = 1 << 20;     ///< largest max_accounts
  static constexpr std::int64_t kFewestGhostBlocks = 4;      ///< smallest ghost_blocks but 0
  static constexpr std::int64_t kMostGhostBlocks = 1 << 24;  ///< largest ghost_blocks

  bool is_on = false;  ///< whether there is a prefix cache; without one, nothing is allocated
  /// The key of the hash. {0, 0}: drawn at create. It decides the places of hashes in a table, so
  /// ranks may have different keys; and which blocks sampled ghosts are made of, so their figures.
  std::array<std::uint64_t, 2> hash_key{};
  /// Extra keys that a sequence may have, 0 .. kMostExtraKeys. Each costs 12 bytes a block.
  std::int32_t max_extra_keys = 0;
  /// Newest removals, and newest registrations, that are remembered for PrefixStop; 0: one for each
  /// 16 blocks, and at least 64.
  std::int64_t history_entries = 0;
  DuplicateRule duplicates = DuplicateRule::duplicate;  ///< the rule for equal blocks
  /// Salts that may have an account at a time, 0 .. kMostAccounts (BlockTables::set_salt_limits).
  /// Unless it is 0, accounts cost 12 bytes a block. Each floor takes a holder of the manager.
  std::int32_t max_accounts = 0;
  /// Ids of the largest ghost cache, kFewestGhostBlocks .. kMostGhostBlocks; 0: no ghosts. Ghosts
  /// say what other sizes and policies would find (PrefixUse). Each query is then hashed to its
  /// end, but not past num_blocks blocks. With groups the pool counts as the prefix blocks that its
  /// pages have room for, each with a block of every group whose tables grow and its part of a
  /// state for each checkpoint. That a window or a state may be missing is not played, which finds
  /// too much. That the pool evicts old blocks of windows first and keeps more prefix blocks for it
  /// is not played, which finds too little.
  std::int64_t ghost_blocks = 0;
  /// Whether a sequence may begin with the first tokens of a cached block whose other tokens
  /// differ. It then holds that block until its first append copies it (AppendResult::copies).
  bool share_parts = false;
  PrefixEventSink events{};  ///< told what is stored and removed; outlives the tables
};

/// A question to the prefix cache. The spans are borrowed for the call.
struct PrefixQuery {
  /// From the beginning of the sequence. Of more blocks than the pool has, the first num_blocks
  /// count; PrefixStop then speaks of these.
  std::span<const std::int32_t> tokens = {};
  std::uint64_t salt = 0;                     ///< the tenant
  std::span<const ExtraKey> extra_keys = {};  ///< by first_token, rising or equal
};

/// The longest published prefix of some tokens.
struct PrefixMatch {
  std::int64_t tokens = 0;                          ///< covered: blocks * block_size + part_tokens
  std::int64_t blocks = 0;                          ///< covered to their ends
  PrefixStop stop = PrefixStop::less_than_a_block;  ///< why not more
  PrefixRemoval removal = PrefixRemoval::evicted;   ///< stop evicted: the cause
  /// Stop evicted: of PrefixStats::removals. 0: the block was taken out of service, and no call has
  /// found that yet.
  std::uint64_t removal_serial = 0;
  /// Stop evicted: the sequence whose growth took the block, or a block in front of it. Only a
  /// sequence of the query's own salt is named, never another tenant's. kNoSequence for other
  /// causes, for a PrefixPool, and where the note of the eviction is gone: the cache keeps
  /// history_entries notes, by default one for each 256 blocks, and 16 in small pools.
  SequenceId removal_by = kNoSequence;
  /// Stop evicted, and the note is still there: BlockManager::clock_time at the eviction, whoever
  /// took the block; else 0.
  std::int64_t removal_time = 0;
  BlockId pending_block = kNoBlock;  ///< stop not_yet_published: the block that is waited for
  /// Tokens whose blocks are published in the group that keeps all tokens; more than `tokens` only
  /// when `stop` is other_group. A state that is kept there would be found next time.
  std::int64_t registered_tokens = 0;
  /// Tokens covered behind these blocks, by a part of one more: only with share_parts, less than
  /// block_size, and one token is left to compute. Of the newest blocks that follow the last one
  /// covered, a bounded number is looked at. A sequence gets no part when the pool lacks the block
  /// more that it takes until the part is copied.
  std::int64_t part_tokens = 0;
};

/// Figures of a prefix cache. Counters count since create.
struct PrefixStats {
  std::int64_t registered = 0;      ///< blocks that are registered now
  std::int64_t published = 0;       ///< of these, those that can be matched
  std::uint64_t registrations = 0;  ///< blocks ever registered
  std::uint64_t removals = 0;       ///< blocks that ceased to be registered
  std::uint64_t queries = 0;        ///< sequences created with tokens, and calls of adopt
  std::uint64_t query_tokens = 0;   ///< tokens of these
  std::uint64_t hits = 0;           ///< queries of which at least a block was covered
  std::uint64_t hit_blocks = 0;     ///< blocks covered
  std::uint64_t hit_tokens = 0;     ///< tokens covered, parts of blocks included
  std::uint64_t duplicates = 0;     ///< blocks computed while an equal one was registered
  std::uint64_t shared = 0;         ///< of these, those given up for the registered one
  std::uint64_t broken_chains = 0;  ///< sequences that stopped to register blocks: a block of
                                    ///< theirs was removed, or its content was set by others
  std::array<std::uint64_t, kNumPrefixStops> stops{};           ///< queries by PrefixStop
  std::array<std::uint64_t, kNumPrefixRemovals> removals_by{};  ///< removals by PrefixRemoval
};

}  // namespace kvarena
