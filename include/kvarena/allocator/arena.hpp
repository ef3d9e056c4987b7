#pragma once

/// @file
/// `Arena`: one device allocation carved into equal blocks. Bytes only; who holds which block is
/// the BlockManager's business. Owns its memory (frees it when destroyed); move-only. The device
/// must outlive it. Addresses may be computed from any thread.

#include "kvarena/base/layout.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>

namespace kvarena {

/// How large a pool is to be. Exactly one of the three must be set.
struct PoolSize {
  std::int64_t num_blocks = 0;           ///< that many blocks
  std::int64_t budget_bytes = 0;         ///< as many blocks as fit into this many bytes
  std::int64_t all_free_but_bytes = -1;  ///< the device's free memory but this much; 0 is valid
};

/// What a pool of some size will be. The planner and `Arena::create` both call plan_pool.
struct PoolPlan {
  std::int64_t num_blocks = 0;   ///< blocks
  std::int64_t pool_bytes = 0;   ///< num_blocks * block_bytes: what is allocated
  std::int64_t slack_bytes = 0;  ///< of the budget, unused: less than one block
};

/// The blocks a pool gets. Pure but for reading `free_bytes`, the device's free memory.
/// Returns invalid_argument naming the field when it is negative or too large, invalid_argument
/// (size), `subject` the number of fields that are set, when that is not one;
/// insufficient_vram{block_bytes, budget} when not even one block fits, or what
/// KvLayout::pool_bytes returns.
KVARENA_EXPORT Result<PoolPlan> plan_pool(const KvLayout& layout, const PoolSize& size,
                                          std::int64_t free_bytes);
/// The same for blocks of that many bytes, >= 1, whatever is in them.
KVARENA_EXPORT Result<PoolPlan> plan_pool(std::int64_t block_bytes, const PoolSize& size,
                                          std::int64_t free_bytes);

/// Options of an arena.
struct ArenaOptions {
  PoolSize size;                               ///< how large
  BlockOrder order = BlockOrder::block_major;  ///< which bytes lie together
  std::string_view description = "kv arena";   ///< for the tracker
};

/// The pool's bytes.
class KVARENA_EXPORT Arena {
 public:
  /// Allocates the pool with purpose KVCache: exactly one device allocation. Contents are
  /// uninitialised. Returns what plan_pool and Device::allocate return; nothing is left behind.
  static Result<Arena> create(Device& device, const KvLayout& layout, const ArenaOptions& options);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  /// The layout it was created with.
  const KvLayout& layout() const noexcept { return layout_; }
  /// Block-major or layer-major.
  BlockOrder order() const noexcept { return order_; }
  /// Blocks in the pool.
  std::int64_t num_blocks() const noexcept { return plan_.num_blocks; }
  /// Bytes allocated.
  std::int64_t bytes() const noexcept { return plan_.pool_bytes; }
  /// First byte.
  std::byte* base() const noexcept { return base_; }

  /// First byte of (block, layer, kind). Requires a valid block and an existing plane: check with
  /// `contains` first when either comes from outside.
  std::byte* address(BlockId block, std::int32_t layer, PlaneKind kind) const noexcept;
  /// Whether that block and plane exist.
  bool contains(BlockId block, std::int32_t layer, PlaneKind kind) const noexcept;
  /// K and V of one layer. Returns invalid_argument (layer) when there is none.
  Result<KvLayerView> layer_view(std::int32_t layer) const noexcept;

 private:
  Arena(Device& device, const KvLayout& layout, BlockOrder order, PoolPlan plan, std::byte* base);

  Device* device_;
  KvLayout layout_;
  BlockOrder order_;
  PoolPlan plan_;
  std::byte* base_;
};

}  // namespace kvarena
