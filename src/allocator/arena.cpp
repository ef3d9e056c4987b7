#include "kvarena/allocator/arena.hpp"

#include "base/log_internal.hpp"
#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "device/free_bytes.hpp"
#include "kvarena/allocator/layer_view.hpp"

#include <new>
#include <utility>

namespace kvarena {

Result<Arena> Arena::create(Device& device, const KvLayout& layout,
                            const ArenaOptions& options) try {
  if (Status s = check_enum(Option::order, options.order, BlockOrder::layer_major); !s) return s;
  const Result<std::int64_t> free_bytes = free_bytes_of(device);
  if (!free_bytes) return free_bytes.status();
  const Result<PoolPlan> plan = plan_pool(layout, options.size, *free_bytes);
  if (!plan) return plan.status();
  return allocated(Arena(device, layout, options.order, *plan), options.description);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<Arena> Arena::create(Device& device, const GroupLayout& groups,
                            const ArenaOptions& options) try {
  if (Status s = check_enum(Option::order, options.order, BlockOrder::layer_major); !s) return s;
  if (options.order != BlockOrder::block_major) {
    return unsupported_option(Option::order, static_cast<std::uint64_t>(options.order));
  }
  const Result<std::int64_t> free_bytes = free_bytes_of(device);
  if (!free_bytes) return free_bytes.status();
  const Result<PoolPlan> plan = plan_pool(groups.page_bytes(), options.size, *free_bytes);
  if (!plan) return plan.status();
  Arena arena(device, groups.parts()[0].layout, options.order, *plan);
  arena.groups_ = groups;
  return allocated(std::move(arena), options.description);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

/// Allocates the bytes of an arena that is complete otherwise, so that nothing can fail afterwards.
Result<Arena> Arena::allocated(Arena arena, std::string_view description) {
  const Result<void*> memory =
      arena.device_->allocate({.bytes = static_cast<std::uint64_t>(arena.plan_.pool_bytes),
                               .purpose = MemoryPurpose::kv_cache,
                               .description = description});
  if (!memory) return memory.status();
  arena.base_ = static_cast<std::byte*>(*memory);
  return arena;
}

Arena::Arena(Device& device, const KvLayout& layout, BlockOrder order, PoolPlan plan)
    : device_(&device), layout_(layout), order_(order), plan_(plan) {}

Arena::~Arena() {
  if (base_ == nullptr) return;
  if (Status status = device_->free(base_); !status) {
    log_line(LogLevel::error, "arena of {} bytes not freed: {}", plan_.pool_bytes,
             describe(status));
  }
}

Arena::Arena(Arena&& other) noexcept
    : device_(other.device_),
      layout_(std::move(other.layout_)),
      groups_(std::move(other.groups_)),
      order_(other.order_),
      plan_(std::exchange(other.plan_, {})),
      base_(std::exchange(other.base_, nullptr)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  // `taken` destroys the pool that was here.
  Arena taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(layout_, taken.layout_);
  std::swap(groups_, taken.groups_);
  std::swap(order_, taken.order_);
  std::swap(plan_, taken.plan_);
  std::swap(base_, taken.base_);
  return *this;
}

std::byte* Arena::address(BlockId block, std::int32_t layer, PlaneKind kind) const noexcept {
  if (groups_) {
    if (kind == PlaneKind::index) {
      const PlaneView plane = groups_->index_view(base_, plan_.num_blocks, layer).value().index;
      return plane.base + block.value * plane.block_stride;
    }
    const KvLayerView view = groups_->layer_view(base_, plan_.num_blocks, layer).value();
    const PlaneView& plane = kind == PlaneKind::key ? view.key : view.value;
    return plane.base + block.value * plane.block_stride;
  }
  const std::int32_t plane = layout_.plane_of(layer, kind);
  return base_ + layout_.plane_offset(plane, order_, plan_.num_blocks) +
         std::int64_t{block.value} * layout_.block_stride(plane, order_);
}

bool Arena::contains(BlockId block, std::int32_t layer, PlaneKind kind) const noexcept {
  if (groups_) {
    const Result<KvLayerView> view = groups_->layer_view(base_, plan_.num_blocks, layer);
    const bool exists =
        kind <= PlaneKind::value || (kind == PlaneKind::index && groups_->has_index(layer));
    return view && block.value >= 0 && block.value < view->num_blocks && exists;
  }
  return block.value >= 0 && block.value < plan_.num_blocks && layout_.plane_of(layer, kind) >= 0;
}

Result<KvLayerView> Arena::layer_view(std::int32_t layer) const noexcept {
  if (groups_) return groups_->layer_view(base_, plan_.num_blocks, layer);
  return kvarena::layer_view({layout_, order_, plan_.num_blocks}, base_, layer);
}

Result<IndexView> Arena::index_view(std::int32_t layer) const noexcept {
  if (groups_) return groups_->index_view(base_, plan_.num_blocks, layer);
  return invalid_argument(Resource::layer, layer, 0, num_layers() - 1);
}

Result<StateView> Arena::state_view(std::int32_t layer) const noexcept {
  if (groups_) return groups_->state_view(base_, plan_.num_blocks, layer);
  return invalid_argument(Resource::layer, layer, 0, num_layers() - 1);
}

}  // namespace kvarena
