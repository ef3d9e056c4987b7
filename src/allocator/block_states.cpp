// The calls that change what is known of a block: its content, and whether it is in service.

#include "allocator/block_manager_impl.hpp"
#include "base/range_checks.hpp"

namespace kvarena {

Status BlockManager::Impl::set_content(BlockId id, Generation generation, BlockContent content) {
  if (Status s = check_enum(Resource::content, content, BlockContent::failed); !s) return s;
  if (!pool.contains(id)) return not_found(Resource::block, static_cast<std::uint64_t>(id.value));
  if (pool.record(id).generation != generation.value) return refuse_handle(id, generation);
  if (pool.content(id) == BlockContent::published && content == BlockContent::being_written) {
    return failed_precondition(Resource::block, static_cast<std::uint64_t>(id.value));
  }
  switch (pool.state(id)) {
    case BlockState::referenced:
    case BlockState::fenced:
      if (content == BlockContent::published) ++claim_serial;
      pool.set_content(id, content);
      return {};
    case BlockState::evictable:
      if (content != BlockContent::published) pool.free_evictable(id);
      return {};
    case BlockState::free:
    case BlockState::offline:
    case BlockState::absent: break;
  }
  return refuse_handle(id, generation);
}

/// A held block is only marked. An available block is taken only while some available block is not
/// promised to a holder.
Result<bool> BlockManager::Impl::quarantine(BlockId id) {
  if (!pool.contains(id)) return not_found(Resource::block, static_cast<std::uint64_t>(id.value));
  switch (pool.state(id)) {
    case BlockState::offline: return true;
    case BlockState::referenced:
    case BlockState::fenced: pool.record(id).word |= BlockPool::kQuarantined; return false;
    case BlockState::free:
    case BlockState::evictable:
    case BlockState::absent: break;
  }
  if (pool.pages() != nullptr) return quarantine_in_page(id);
  if (usable(Urgency::growth) == 0) {
    return exhausted(Resource::reservation, static_cast<std::uint64_t>(reserved),
                     static_cast<std::uint64_t>(available() - 1));
  }
  pool.take_offline(id);
  note_peak();
  return true;
}

Status BlockManager::Impl::restore(BlockId id) {
  if (!pool.contains(id)) return not_found(Resource::block, static_cast<std::uint64_t>(id.value));
  if (pool.state(id) == BlockState::offline) {
    EvictionOrder* const order = pool.order();
    if (order == nullptr) {
      pool.bring_online(id);
      return {};
    }
    // Its page may become idle. Then the page belongs to no run, and ends the one before it.
    const std::int64_t size = order->size();
    order->begin_run(0);
    pool.bring_online(id);
    if (order->size() != size) order->end_run();
    return {};
  }
  BlockPool::Record& r = pool.record(id);
  if ((r.word & BlockPool::kHeld) != 0 && (r.word & BlockPool::kQuarantined) != 0) {
    r.word &= ~BlockPool::kQuarantined;
    return {};
  }
  return failed_precondition(Resource::block, static_cast<std::uint64_t>(id.value));
}

}  // namespace kvarena
