#include "blocktable/prefix_faults.hpp"

#include "blocktable/prefix_cache.hpp"

namespace kvarena {
namespace {

PrefixFault planted = PrefixFault::none;

}  // namespace

void set_prefix_fault(PrefixFault fault) noexcept { planted = fault; }
PrefixFault prefix_fault() noexcept { return planted; }

/// The fault publishes_at_registration.
void PrefixCache::publish_early(BlockId id) noexcept {
  PrefixBlock& block = index_.block(id);
  static_cast<void>(manager_->set_content(id, block.generation, BlockContent::published));
  block.marks |= PrefixBlock::kPublished;
  ++stats_.published;
}

}  // namespace kvarena
