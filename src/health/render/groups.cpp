#include "health/render/figures.hpp"

namespace kvarena {
namespace {

template <auto Member>
constexpr auto kOfPages = member_of<PageStats, Member>;
template <auto Member>
constexpr auto kOfGroup = member_of<GroupStats, Member>;

constexpr Figure<PageStats> kPageFigures[] = {
    {{"kvarena_pool_pages", "Pages in the pool; the states of kvarena_pages add up to it."},
     kOfPages<&PageStats::num_pages>},
    {{"kvarena_page_bytes", "Bytes of a page."}, kOfPages<&PageStats::page_bytes>},
    {{"kvarena_pages_evictable", "Pages of groups in which no block is held: they can be turned."},
     kOfPages<&PageStats::evictable>},
    {{"kvarena_pages_reserved", "Pages promised to holders, still free or evictable."},
     kOfPages<&PageStats::reserved>},
    {{"kvarena_pages_watermark", "Pages that admission leaves available."},
     kOfPages<&PageStats::watermark>},
    {{"kvarena_pages_peak", "The most pages that were not free at any time."},
     kOfPages<&PageStats::peak_used>},
    {{"kvarena_pages_turned_total", "Pages carved for a group."}, kOfPages<&PageStats::turned>},
};

constexpr State<PageStats> kPageStates[] = {
    {"free", &PageStats::free},
    {"of_groups", &PageStats::of_groups},
    {"offline", &PageStats::offline},
};

constexpr Figure<GroupStats> kGroupFigures[] = {
    {{"kvarena_group_pages", "Pages that are carved for the group."}, kOfGroup<&GroupStats::pages>},
    {{"kvarena_group_block_bytes", "Bytes of a block of the group."},
     kOfGroup<&GroupStats::block_bytes>},
    {{"kvarena_group_blocks_per_page", "Blocks of the group in a page."},
     kOfGroup<&GroupStats::blocks_per_page>},
    {{"kvarena_group_blocks_stranded",
      "Free blocks in pages with held ones: only the group can use them."},
     kOfGroup<&GroupStats::stranded>},
};

constexpr State<GroupStats> kBlockStates[] = {
    {"free", &GroupStats::free},       {"referenced", &GroupStats::referenced},
    {"fenced", &GroupStats::fenced},   {"evictable", &GroupStats::evictable},
    {"offline", &GroupStats::offline},
};

}  // namespace

void add_group_families(const LabelledPools& pools, Families& families) {
  std::vector<Labelled<PageStats>> pages;
  std::vector<Labelled<GroupStats>> groups;
  for (const auto& [pool, labels] : pools) {
    const PoolSnapshot& snapshot = pool.snapshot;
    const auto num_groups = static_cast<std::size_t>(snapshot.num_groups);
    if (num_groups > 0) pages.push_back({snapshot.pages, labels});
    for (std::size_t g = 0; g < num_groups; ++g) {
      groups.push_back({snapshot.groups[g], with(with(labels, "group", std::to_string(g)), "kind",
                                                 name_of(snapshot.kinds[g]))});
    }
  }
  if (pages.empty()) return;
  add_states({"kvarena_pages", "Pages by state; each is in exactly one."}, kPageStates, pages,
             families);
  add_figures(kPageFigures, pages, 0, families);
  add_states({"kvarena_group_blocks", "Blocks of a group's pages by state; each is in one."},
             kBlockStates, groups, families);
  add_figures(kGroupFigures, groups, 0, families);
}

}  // namespace kvarena
