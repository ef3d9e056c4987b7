// What callers say about eviction, and what a pool with an EvictionOrder checks before it changes.

#include "allocator/block_manager_impl.hpp"
#include "base/range_checks.hpp"
#include "kvarena/base/violation.hpp"

namespace kvarena {
namespace {

/// The retentions of a pool whose policy has them, else nullptr.
template <class Order>
auto* retentions_of(Order* order) noexcept {
  return order == nullptr ? nullptr : order->retentions();
}

Status without_retentions(const EvictionOrder* order) noexcept {
  const EvictionPolicy policy = order == nullptr ? EvictionPolicy::tail_first : order->policy();
  return unsupported_option(Option::eviction, static_cast<std::uint64_t>(policy));
}

}  // namespace

Status BlockManager::set_retention(BlockId id, Generation generation,
                                   const RetentionHint& retention) {
  const Status status = impl_->set_retention(id, generation, retention);
  impl_->append_log({.kind = OperationKind::set_retention,
                     .outcome = status.code,
                     .flag = static_cast<std::uint8_t>(retention.priority),
                     .count = retention.expires_at,
                     .ids = std::span(&id, 1)});
  return status;
}

Status BlockManager::advance_clock(std::int64_t now) {
  const Status status = impl_->advance_clock(now);
  impl_->append_log({.kind = OperationKind::advance_clock, .outcome = status.code, .count = now});
  return status;
}

RetentionHint BlockManager::retention(BlockId id) const noexcept {
  const PriorityOrder* retentions = retentions_of(impl_->pool.order());
  if (retentions == nullptr) return {};
  return retentions->retention(impl_->pool.key_of(id));
}

std::int64_t BlockManager::clock_time() const noexcept {
  const PriorityOrder* retentions = retentions_of(impl_->pool.order());
  return retentions == nullptr ? 0 : retentions->now();
}

EvictionPolicy BlockManager::eviction() const noexcept {
  const EvictionOrder* order = impl_->pool.order();
  return order == nullptr ? EvictionPolicy::tail_first : order->policy();
}

Status BlockManager::Impl::set_retention(BlockId id, Generation generation,
                                         const RetentionHint& retention) {
  EvictionOrder* order = pool.order();
  PriorityOrder* retentions = retentions_of(order);
  if (retentions == nullptr) return without_retentions(order);
  if (Status s = check_option(Option::priority, retention.priority, 0, RetentionHint::kMaxPriority);
      !s) {
    return s;
  }
  if (Status s = check_option(Option::expires_at, retention.expires_at, 0, RetentionHint::kNever);
      !s) {
    return s;
  }
  if (!pool.contains(id)) return not_found(Resource::block, static_cast<std::uint64_t>(id.value));
  if (pool.record(id).generation != generation.value) return refuse_handle(id, generation);
  if (pool.content(id) != BlockContent::published) {
    return failed_precondition(Resource::block, static_cast<std::uint64_t>(id.value));
  }
  const BlockId key = pool.key_of(id);
  const bool is_in_order = pool.is_in_order(id);
  if (is_in_order) order->hold(key);
  retentions->set_retention(key, retention);
  if (is_in_order) order->insert(key);
  return {};
}

Status BlockManager::Impl::advance_clock(std::int64_t now) {
  EvictionOrder* order = pool.order();
  PriorityOrder* retentions = retentions_of(order);
  if (retentions == nullptr) return without_retentions(order);
  if (Status s = check_option(Option::clock, now, retentions->now(), RetentionHint::kNever - 1);
      !s) {
    return s;
  }
  retentions->advance_clock(now);
  return {};
}

/// Gives the references up and takes them back.
Status BlockManager::Impl::check_release(const Holder& holder, HolderId holder_id,
                                         std::span<const BlockId> ids,
                                         std::span<const Generation> generations) noexcept {
  std::size_t lowered = 0;
  while (lowered < ids.size() && lower(ids[lowered], generations[lowered])) ++lowered;
  Status status;
  if (lowered < ids.size()) {
    status = refuse_handle(ids[lowered], generations[lowered]);
  } else if (holder.references < static_cast<std::int64_t>(ids.size())) {
    status = {StatusCode::reference_underflow,
              Resource::holder,
              Option::none,
              0,
              holder_id.value,
              ids.size(),
              static_cast<std::uint64_t>(holder.references)};
  }
  while (lowered-- > 0) undo_lower(ids[lowered]);
  if (status) return status;
  return report_violation(status, "BlockManager::release", name.c_str());
}

}  // namespace kvarena
