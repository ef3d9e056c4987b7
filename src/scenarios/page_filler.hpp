#pragma once

/// @file
/// `PageFiller`: takes the blocks of groups in the memory of a cache that has no sequences, fills
/// each block with a value of its own, and finds blocks whose bytes have changed. Its accounts are
/// a BlockManager of its own, with the pages and groups of the cache. It borrows the cache. One
/// thread at a time.

#include "verify/failure.hpp"

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::scenarios {

class PageFiller {
 public:
  /// Returns what BlockManager::create and register_holder return.
  static Result<PageFiller> create(KvCache& cache);

  const BlockManager& manager() const noexcept { return manager_; }

  /// Each group takes a page of blocks in turn, until each of them has been refused one. Fills all
  /// blocks and waits for it. Fails when a call is refused for another reason.
  verify::MaybeFailure take_until_refused(std::span<const std::int32_t> groups);
  /// The last refusal of a group.
  const Status& refusal(std::int32_t group) const noexcept {
    return holdings_[static_cast<std::size_t>(group)].refused;
  }
  /// Returns how many first and last bytes of all blocks have changed. Waits for the device.
  Result<std::int64_t> count_wrong_bytes() const;
  /// Gives all blocks back.
  Status release_all();

 private:
  /// The blocks of one group.
  struct Holding {
    HolderId holder;
    std::vector<BlockId> ids;
    std::vector<Generation> generations;
    Status refused;
  };

  PageFiller(KvCache& cache, BlockManager manager) noexcept
      : cache_(&cache), manager_(std::move(manager)) {}
  Status take_page(std::int32_t group);
  std::byte* address_of(BlockId id) const noexcept;
  std::int64_t bytes_of(BlockId id) const noexcept;

  KvCache* cache_;
  BlockManager manager_;
  std::vector<Holding> holdings_;  // by group
};

}  // namespace kvarena::scenarios
