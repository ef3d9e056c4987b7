#pragma once

/// @file
/// `PrefixBlocks`: a PrefixCache without sequences. Callers keep the tables; they name blocks, and
/// the places of blocks by PrefixPosition (prefix_pool.hpp). It checks everything that it is told,
/// and then changes the cache.

#include "blocktable/prefix_cache.hpp"
#include "kvarena/blocktable/prefix_pool.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarena {

/// The registered blocks of a pool.
class PrefixBlocks {
 public:
  /// Blocks that a caller names.
  struct Handles {
    std::span<const BlockId> ids;
    std::span<const Generation> generations;
  };
  /// Full blocks of a sequence, one behind the other.
  struct Filled {
    std::span<const std::int32_t> tokens;
    Handles blocks;
    std::span<const ExtraKey> keys;  ///< of the whole sequence
  };

  /// Requires options that PrefixCache::prepare has returned, without sequences.
  PrefixBlocks(BlockManager& manager, const BlockTablesOptions& options);
  static std::int64_t bytes(std::int64_t num_blocks, const BlockTablesOptions& options) noexcept;

  std::int32_t block_size() const noexcept { return static_cast<std::int32_t>(cache_.block_size_); }
  const PrefixCache& cache() const noexcept { return cache_; }
  PrefixCache& cache() noexcept { return cache_; }

  PrefixPosition begin(std::uint64_t salt) const noexcept;
  /// What was found is in found_ids and found_generations, until the next call.
  Result<PrefixMatch> match(const PrefixQuery& query);
  std::span<const BlockId> found_ids(const PrefixMatch& found) const noexcept {
    return {ids_.data(), static_cast<std::size_t>(found.blocks)};
  }
  std::span<const Generation> found_generations(const PrefixMatch& found) const noexcept {
    return {generations_.data(), static_cast<std::size_t>(found.blocks)};
  }
  /// Retains what match has found, and counts the query.
  Result<PrefixPosition> take(HolderId holder, const PrefixQuery& query, const PrefixMatch& found);
  /// PrefixPool::register_blocks.
  Result<std::int64_t> add(PrefixPosition& position, const Filled& filled);
  Result<std::int64_t> publish(const Handles& blocks);
  Status forget(std::span<const BlockId> ids);
  void notice(std::span<const BlockId> ids) noexcept;
  Status check() const;

 private:
  /// How far the blocks of a call have been hashed and found.
  struct Walk;

  Status check_block(BlockId id) const noexcept;
  Status check_handles(const Handles& blocks) const noexcept;
  Status check_position(const PrefixPosition& position) const noexcept;
  Status check_filled(const PrefixPosition& position, const Filled& filled) const noexcept;
  Status check_new(std::span<const BlockId> ids, std::size_t found) noexcept;
  Status check_each_new(std::span<const BlockId> ids, std::size_t found,
                        std::size_t& looked_at) noexcept;
  void hash_run(Walk& walk, const Filled& filled) const noexcept;
  void find_registered(Walk& walk, const Filled& filled) const noexcept;
  void register_next(Walk& walk, const Filled& filled) noexcept;
  void enter(BlockId id, Generation generation, const Hash128& hash, const PrefixContent& content,
             std::uint64_t salt);
  PrefixPosition position_behind(const PrefixQuery& query, const PrefixMatch& found) const noexcept;

  BlockManager* manager_;
  PrefixCache cache_;
  std::uint64_t number_;    // in the positions that it makes
  LazyArray<BlockId> ids_;  // of one match
  LazyArray<Generation> generations_;
  LazyArray<std::uint64_t> salts_;  // of the registered blocks; empty: no event tells them
};

}  // namespace kvarena
