#include "kvarena/allocator/arena.hpp"

#include "base/log_internal.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvarena {
namespace {

std::size_t plane_index(std::int32_t plane) noexcept { return static_cast<std::size_t>(plane); }

/// The device's free memory in the planner's signed bytes.
Result<std::int64_t> free_bytes_of(const Device& device) {
  const Result<MemoryInfo> memory = device.memory_info();
  if (!memory) return memory.status();
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::int64_t>(std::min(memory->free_bytes, kMost));
}

}  // namespace

Result<Arena> Arena::create(Device& device, const KvLayout& layout, const ArenaOptions& options) {
  const Result<std::int64_t> free_bytes = free_bytes_of(device);
  if (!free_bytes) return free_bytes.status();
  const Result<PoolPlan> plan = plan_pool(layout, options.size, *free_bytes);
  if (!plan) return plan.status();
  // Complete but for its bytes, so that nothing can fail once they are there.
  Arena arena(device, layout, options.order, *plan, nullptr);
  const Result<void*> memory =
      device.allocate({.bytes = static_cast<std::uint64_t>(plan->pool_bytes),
                       .purpose = MemoryPurpose::kv_cache,
                       .description = options.description});
  if (!memory) return memory.status();
  arena.base_ = static_cast<std::byte*>(*memory);
  return arena;
}

Arena::Arena(Device& device, const KvLayout& layout, BlockOrder order, PoolPlan plan,
             std::byte* base)
    : device_(&device), layout_(layout), order_(order), plan_(plan), base_(base) {}

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
      order_(other.order_),
      plan_(std::exchange(other.plan_, {})),
      base_(std::exchange(other.base_, nullptr)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  // The swapped-out pool goes with `taken`.
  Arena taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(layout_, taken.layout_);
  std::swap(order_, taken.order_);
  std::swap(plan_, taken.plan_);
  std::swap(base_, taken.base_);
  return *this;
}

std::byte* Arena::address(BlockId block, std::int32_t layer, PlaneKind kind) const noexcept {
  const std::int32_t plane = layout_.plane_of(layer, kind);
  return base_ + layout_.plane_offset(plane, order_, plan_.num_blocks) +
         std::int64_t{block.value} * layout_.block_stride(plane, order_);
}

bool Arena::contains(BlockId block, std::int32_t layer, PlaneKind kind) const noexcept {
  return block.value >= 0 && block.value < plan_.num_blocks && layout_.plane_of(layer, kind) >= 0;
}

PlaneView Arena::plane_view(std::int32_t plane) const noexcept {
  const PlaneSpec& spec = layout_.planes()[plane_index(plane)];
  return {.base = base_ + layout_.plane_offset(plane, order_, plan_.num_blocks),
          .block_stride = layout_.block_stride(plane, order_),
          .head_stride = layout_.head_stride(plane),
          .token_stride = layout_.token_stride(plane),
          .num_heads = spec.num_heads,
          .head_dim = spec.head_dim,
          .dtype = spec.dtype,
          .tile_order = layout_.tile_order()};
}

Result<KvLayerView> Arena::layer_view(std::int32_t layer) const noexcept {
  const std::int32_t key = layout_.plane_of(layer, PlaneKind::key);
  const std::int32_t value = layout_.plane_of(layer, PlaneKind::value);
  if (key < 0 || value < 0) {
    return invalid_argument(Resource::layer, layer, 0, layout_.num_layers() - 1);
  }
  return KvLayerView{.key = plane_view(key),
                     .value = plane_view(value),
                     .block_size = layout_.block_size(),
                     .num_blocks = plan_.num_blocks};
}

}  // namespace kvarena
