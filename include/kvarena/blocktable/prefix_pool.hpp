#pragma once

/// @file
/// `PrefixPool`: the prefix cache of a BlockManager without BlockTables, for engines that keep
/// block tables themselves. It finds, verifies, explains and evicts as the cache of BlockTables
/// does (prefix.hpp). The engine says what BlockTables would know: which tokens fill which block,
/// and behind which other block.
///
/// A PrefixPosition says where in a prefix the next block comes. The engine keeps one for each
/// sequence: a plain value, which a fork copies. `begin` makes the first one, `adopt` one behind
/// what was found, and `register_blocks` moves it on.
///
/// The life of a block: the engine allocates it, fills it and registers it, which makes it
/// `being_written`. publish says that what fills it has been queued on the home stream, or is
/// complete: from now on it is matched, and evictable when nobody holds it. Nobody but this object
/// may set the content of blocks to published. The engine tells `notice` which blocks it has
/// allocated, and which it has released, or set to another content, before they were published.
/// What it does not tell is found lost in time, and never matched.
///
/// The manager must outlive this object and must not be moved meanwhile. A call takes all or
/// nothing. A refused one changes nothing, except that register_blocks and publish notice what has
/// gone. The same calls give the same results: no key, address or clock decides anything. All
/// memory is allocated at create.
///
/// One thread at a time, the manager's. Move-only.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/prefix.hpp"
#include "kvarena/blocktable/prefix_figures.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

namespace kvarena {

/// Options of a prefix pool.
struct PrefixPoolOptions {
  std::int32_t block_size_tokens = 16;  ///< tokens in a block, 1 .. 65536
  /// `is_on` is not read. DuplicateRule::share and accounts are of BlockTables alone. With `events`
  /// each block costs 8 bytes more.
  PrefixOptions prefix{};
};

/// A place in a prefix, behind `blocks` registered blocks. The other members are for this library.
struct PrefixPosition {
  std::int32_t blocks = 0;               ///< before it
  std::int32_t num_keys = 0;             ///< extra keys that begin in these
  std::uint64_t pool = 0;                ///< of the object that made it; 0: none
  std::uint64_t salt = 0;                ///< the tenant
  std::array<std::uint64_t, 2> chain{};  ///< hash of the tokens of these blocks
  std::array<std::uint64_t, 2> root{};   ///< hash of the salt and the extra keys of these blocks
  BlockId last = kNoBlock;               ///< the last of these blocks
  std::uint32_t registration = 0;        ///< how often that block had been registered
};
static_assert(sizeof(PrefixPosition) == 64 && std::is_trivially_copyable_v<PrefixPosition>);

/// What adopt has found, and where the sequence goes on.
struct PrefixAdoption {
  PrefixMatch found;   ///< the prefix
  PrefixPosition end;  ///< behind it
};

/// The prefix cache of a pool.
class KVARENA_EXPORT PrefixPool {
 public:
  /// Allocates all tables. Returns invalid_argument with the option, its value and its range;
  /// unsupported (num_groups) for a manager with groups, (duplicates) for share, (max_accounts,
  /// share_parts) for accounts; io_error when no key can be drawn; or exhausted (host_memory).
  static Result<PrefixPool> create(BlockManager& manager, const PrefixPoolOptions& options);
  /// Returns the host memory for a pool of `num_blocks` blocks with valid `options`, an upper
  /// bound.
  static std::int64_t host_bytes(std::int64_t num_blocks,
                                 const PrefixPoolOptions& options) noexcept;
  /// Forgets all blocks.
  ~PrefixPool();
  PrefixPool(PrefixPool&&) noexcept;
  PrefixPool& operator=(PrefixPool&&) noexcept;

  /// Returns the position before the first block of a sequence of this salt. O(1).
  PrefixPosition begin(std::uint64_t salt = 0) const noexcept;
  /// Returns the longest published prefix of the tokens, and why it is no longer. Writes its first
  /// `ids.size()` blocks and as many generations. Changes nothing, figures neither. Returns
  /// invalid_argument (num_tokens) for more than 2^31 - 1 tokens, (span_size) for spans of
  /// different sizes, (extra_keys) for more than max_extra_keys, or (first_token) for a first token
  /// that is negative or smaller than the one before. O(blocks).
  Result<PrefixMatch> match(const PrefixQuery& query, std::span<BlockId> ids = {},
                            std::span<Generation> generations = {}) const;
  /// Does what match does, and takes a reference on each block for `holder`. One token is left to
  /// compute, so room for (tokens - 1) / block_size blocks is enough. Returns what match returns,
  /// invalid_argument (span_size) for spans with room for too few, failed_precondition (content)
  /// for DuplicateRule::wait, not_found (holder), or exhausted (block). O(blocks).
  Result<PrefixAdoption> adopt(HolderId holder, const PrefixQuery& query, std::span<BlockId> ids,
                               std::span<Generation> generations);
  /// Registers blocks behind a position, and moves it behind them. `tokens` fill them; `extra_keys`
  /// are those of the whole sequence, of which the ones that begin in these tokens are new. A block
  /// whose equal is registered is not registered itself: the position goes on behind that one.
  /// Returns how many blocks it has registered.
  ///
  /// Returns not_found (sequence) for a position of another object; stale_handle (block) for one
  /// whose last block is not registered any more: begin anew, with all blocks of the sequence;
  /// not_found, stale_handle or duplicate_argument (block); failed_precondition (block) for a block
  /// that nobody holds, or that has another content than `unwritten` and is not registered for
  /// these tokens; or invalid_argument (num_tokens, span_size, extra_keys, first_token). O(blocks).
  Result<std::int64_t> register_blocks(PrefixPosition& position,
                                       std::span<const std::int32_t> tokens,
                                       std::span<const BlockId> ids,
                                       std::span<const Generation> generations,
                                       std::span<const ExtraKey> extra_keys = {});
  /// Says that blocks have been written, or will be in the order of the home stream. Publishes
  /// those that are registered and returns their number; passes over those that are not, such as
  /// equals of others. Returns not_found or stale_handle (block), or invalid_argument (span_size).
  /// O(blocks).
  Result<std::int64_t> publish(std::span<const BlockId> ids,
                               std::span<const Generation> generations);
  /// Unregisters blocks, and all behind them, also those of others: they are about to be rewritten,
  /// or were not written after all. One that was not published counts as aborted, others as
  /// forgotten. Passes over blocks that are not registered. Returns not_found (block). O(1) a block
  /// that goes.
  Status forget(std::span<const BlockId> ids);
  /// Unregisters all blocks of a salt. O(num_blocks).
  void forget_salt(std::uint64_t salt) noexcept;
  /// Unregisters all blocks. O(num_blocks).
  void forget_all() noexcept;
  /// Looks at blocks that were allocated, released or given another content. Unregisters those that
  /// are not what they were registered for, and all behind them, as evicted, aborted or lost. For
  /// an allocation, BlockManager::evicted is enough when releases are told too. Requires valid ids.
  /// O(1) a block, and O(1) a block that goes.
  void notice(std::span<const BlockId> ids) noexcept;

  std::int32_t block_size_tokens() const noexcept;  ///< PrefixPoolOptions::block_size_tokens
  /// Returns the figures; `shared` and `broken_chains` are 0. Queries are calls of adopt. O(1).
  PrefixStats stats() const noexcept;
  /// Returns how it is used: histograms, and what other sizes and policies would find. O(1).
  PrefixUse use() const noexcept;
  /// Proves the registered blocks against their contents and the manager. Returns
  /// invariant_violated. O(num_blocks).
  Status check_invariants() const;

 private:
  struct Impl;
  explicit PrefixPool(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
