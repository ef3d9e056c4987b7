#include "replay/group_meter.hpp"

#include "replay/pool_units.hpp"

namespace kvarena::replay {
namespace {

GroupUse use_of(const PoolGroups& plan, std::size_t group) {
  const TableGroup& table = plan.tables[group];
  const std::size_t parts = plan.layout.parts().size();
  GroupUse use;
  use.kind = table.kind;
  use.block_bytes = plan.blocks[group].block_bytes;
  use.blocks_per_page = plan.blocks[group].blocks_per_page;
  use.limit_tokens = table.limit_tokens;
  if (table.kind == PagedKind::state) {
    use.num_layers = static_cast<std::int32_t>(plan.layout.states()[group - parts].layers.size());
    use.num_parts = table.num_parts;
    return use;
  }
  const KvLayout& layout = plan.layout.parts()[group].layout;
  for (const PlaneSpec& plane : layout.planes()) {
    use.num_layers += plane.kind == PlaneKind::key ? 1 : 0;
    use.is_latent |= plane.alias_of >= 0;
  }
  return use;
}

std::int64_t blocks_in_use(const GroupStats& stats) noexcept {
  return stats.referenced + stats.fenced;
}

}  // namespace

GroupMeter::GroupMeter(const PoolUnits& units) : page_bytes_(units.page_bytes()) {
  for (std::size_t g = 0; g < units.groups().tables.size(); ++g) {
    groups_.push_back(use_of(units.groups(), g));
  }
}

PageUse GroupMeter::record(std::int64_t now_ns, const BlockManager& manager) {
  const Wide passed = now_ns - now_ns_;
  page_byte_ns_ += passed * now_.page_bytes;
  block_byte_ns_ += passed * now_.block_bytes;
  now_ns_ = now_ns;
  const PageStats pages = manager.page_stats();
  now_ = {.pages = pages.of_groups - pages.evictable};
  now_.page_bytes = now_.pages * page_bytes_;
  const auto num_groups = static_cast<std::int32_t>(groups_.size());
  for (std::int32_t g = 0; g < num_groups; ++g) {
    const GroupStats stats = manager.group_stats(g);
    now_.block_bytes += blocks_in_use(stats) * stats.block_bytes;
  }
  if (now_.pages <= peak_.pages) return now_;
  peak_ = now_;
  for (std::int32_t g = 0; g < num_groups; ++g) {
    groups_[static_cast<std::size_t>(g)].blocks = blocks_in_use(manager.group_stats(g));
  }
  return now_;
}

void GroupMeter::write_to(const BlockManager& manager, ReplayReport& report) const {
  report.groups = groups_;
  report.pages = {.num_pages = manager.num_pages(),
                  .page_bytes = page_bytes_,
                  .peak_pages = peak_.pages,
                  .peak_waste_bytes = peak_.page_bytes - peak_.block_bytes,
                  .account = manager.page_stats()};
  if (page_byte_ns_ > 0) {
    report.pages.waste =
        1.0 - static_cast<double>(block_byte_ns_) / static_cast<double>(page_byte_ns_);
  }
}

}  // namespace kvarena::replay
