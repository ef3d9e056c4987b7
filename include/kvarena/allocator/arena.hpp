#pragma once

/// @file
/// `Arena`: one device allocation that is cut into equal blocks, or with groups into equal pages.
/// It handles bytes only; the BlockManager knows who holds which block. It owns its memory and
/// frees it when it is destroyed. Move-only. The device must outlive it. Addresses may be computed
/// from any thread.

#include "kvarena/base/group_layout.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <optional>

namespace kvarena {

/// The wanted size of a pool. Exactly one of the three fields must be set.
struct PoolSize {
  std::int64_t num_blocks = 0;           ///< this many blocks
  std::int64_t budget_bytes = 0;         ///< as many blocks as fit into this many bytes
  std::int64_t all_free_but_bytes = -1;  ///< all free memory of the device except this many bytes;
                                         ///< 0 is valid
};

/// The computed size of a pool. The planner and `Arena::create` both call plan_pool.
struct PoolPlan {
  std::int64_t num_blocks = 0;   ///< blocks
  std::int64_t pool_bytes = 0;   ///< num_blocks * block_bytes: the bytes allocated
  std::int64_t slack_bytes = 0;  ///< unused bytes of the budget: less than one block
};

/// Computes how many blocks a pool gets. A pure function of its arguments; `free_bytes` is the
/// device's free memory. Returns invalid_argument with the field when it is negative or too large.
/// Returns invalid_argument (size) unless exactly one field is set; `subject` is the number of
/// fields that are set. Returns insufficient_vram{block_bytes, budget} when not even one block
/// fits, or what KvLayout::pool_bytes returns.
KVARENA_EXPORT Result<PoolPlan> plan_pool(const KvLayout& layout, const PoolSize& size,
                                          std::int64_t free_bytes);
/// Does the same for blocks of `block_bytes` bytes, >= 1, with any content.
KVARENA_EXPORT Result<PoolPlan> plan_pool(std::int64_t block_bytes, const PoolSize& size,
                                          std::int64_t free_bytes);

/// Options of an arena.
struct ArenaOptions {
  PoolSize size;                               ///< the size of the pool
  BlockOrder order = BlockOrder::block_major;  ///< which bytes lie together
  std::string_view description = "kv arena";   ///< for the tracker
};

/// The pool's bytes.
class KVARENA_EXPORT Arena {
 public:
  /// Allocates the pool in exactly one device allocation with purpose KVCache. The content is
  /// uninitialised. Returns what plan_pool and Device::allocate return; no memory is kept then.
  static Result<Arena> create(Device& device, const KvLayout& layout, const ArenaOptions& options);
  /// Does the same for pages: options.size counts them. Returns unsupported (order) for
  /// layer-major.
  static Result<Arena> create(Device& device, const GroupLayout& groups,
                              const ArenaOptions& options);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  /// The layout given to create; with groups that of their first part.
  const KvLayout& layout() const noexcept { return layout_; }
  /// The groups given to create, or null.
  const GroupLayout* groups() const noexcept { return groups_ ? &*groups_ : nullptr; }
  /// Number of layers: the largest layer index, plus one.
  std::int32_t num_layers() const noexcept {
    return groups_ ? groups_->num_layers() : layout_.num_layers();
  }
  /// Block-major or layer-major.
  BlockOrder order() const noexcept { return order_; }
  /// Blocks in the pool; with groups pages.
  std::int64_t num_blocks() const noexcept { return plan_.num_blocks; }
  /// Bytes allocated.
  std::int64_t bytes() const noexcept { return plan_.pool_bytes; }
  /// The first byte of the pool.
  std::byte* base() const noexcept { return base_; }

  /// Returns the first byte of (block, layer, kind). With groups, the block has an id of the
  /// layer's part (GroupLayout). Requires a valid block and an existing plane. Check with
  /// `contains` first when either comes from outside.
  std::byte* address(BlockId block, std::int32_t layer, PlaneKind kind) const noexcept;
  /// Returns whether this block and this plane exist.
  bool contains(BlockId block, std::int32_t layer, PlaneKind kind) const noexcept;
  /// Returns K and V of one layer. Returns invalid_argument (layer) when the layer does not exist.
  Result<KvLayerView> layer_view(std::int32_t layer) const noexcept;
  /// Returns the sparse-attention index of one layer: GroupLayout::index_view. Without groups,
  /// invalid_argument (layer).
  Result<IndexView> index_view(std::int32_t layer) const noexcept;
  /// Returns the states of a recurrent layer. Returns invalid_argument (layer) for another one.
  Result<StateView> state_view(std::int32_t layer) const noexcept;

 private:
  static Result<Arena> allocated(Arena arena, std::string_view description);
  Arena(Device& device, const KvLayout& layout, BlockOrder order, PoolPlan plan);

  Device* device_;
  KvLayout layout_;
  std::optional<GroupLayout> groups_;
  BlockOrder order_;
  PoolPlan plan_;
  std::byte* base_ = nullptr;
};

}  // namespace kvarena
