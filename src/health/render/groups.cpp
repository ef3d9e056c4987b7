#include "health/render/groups.hpp"

#include <string_view>
#include <utility>

namespace kvarena {
namespace {

using Families = std::vector<MetricFamily>;

/// A pool with groups.
struct Grouped {
  const std::string& name;
  const PoolSnapshot& snapshot;
};

template <class Stats>
struct Figure {
  const char* name;
  const char* help;
  double (*value)(const Stats& stats);
};

template <class Stats, auto Member>
double member_of(const Stats& stats) {
  return static_cast<double>(stats.*Member);
}

template <auto Member>
constexpr auto kOfPages = member_of<PageStats, Member>;
template <auto Member>
constexpr auto kOfGroup = member_of<GroupStats, Member>;

constexpr Figure<PageStats> kPageFigures[] = {
    {"kvarena_pool_pages", "Pages in the pool; the states of kvarena_pages add up to it.",
     kOfPages<&PageStats::num_pages>},
    {"kvarena_page_bytes", "Bytes of a page.", kOfPages<&PageStats::page_bytes>},
    {"kvarena_pages_evictable", "Pages of groups in which no block is held: they can be turned.",
     kOfPages<&PageStats::evictable>},
    {"kvarena_pages_reserved", "Pages promised to holders, still free or evictable.",
     kOfPages<&PageStats::reserved>},
    {"kvarena_pages_watermark", "Pages that admission leaves available.",
     kOfPages<&PageStats::watermark>},
    {"kvarena_pages_peak", "The most pages that were not free at any time.",
     kOfPages<&PageStats::peak_used>},
    {"kvarena_pages_turned_total", "Pages carved for a group.", kOfPages<&PageStats::turned>},
};

constexpr std::pair<const char*, std::int64_t PageStats::*> kPageStates[] = {
    {"free", &PageStats::free},
    {"of_groups", &PageStats::of_groups},
    {"offline", &PageStats::offline},
};

constexpr Figure<GroupStats> kGroupFigures[] = {
    {"kvarena_group_pages", "Pages that are carved for the group.", kOfGroup<&GroupStats::pages>},
    {"kvarena_group_block_bytes", "Bytes of a block of the group.",
     kOfGroup<&GroupStats::block_bytes>},
    {"kvarena_group_blocks_per_page", "Blocks of the group in a page.",
     kOfGroup<&GroupStats::blocks_per_page>},
    {"kvarena_group_blocks_stranded",
     "Free blocks in pages with held ones: only the group can use them.",
     kOfGroup<&GroupStats::stranded>},
};

constexpr std::pair<const char*, std::int64_t GroupStats::*> kBlockStates[] = {
    {"free", &GroupStats::free},       {"referenced", &GroupStats::referenced},
    {"fenced", &GroupStats::fenced},   {"evictable", &GroupStats::evictable},
    {"offline", &GroupStats::offline},
};

MetricFamily family_of(const char* name, const char* help) {
  const bool counts = std::string_view(name).ends_with("_total");
  return {name, help, counts ? MetricType::counter : MetricType::gauge, {}};
}

void add_pages(const std::vector<Grouped>& pools, Families& families) {
  MetricFamily states = family_of("kvarena_pages", "Pages by state; each is in exactly one.");
  for (const Grouped& pool : pools) {
    for (const auto& [state, count] : kPageStates) {
      states.samples.push_back({.labels = {{"pool", pool.name}, {"state", state}},
                                .value = static_cast<double>(pool.snapshot.pages.*count)});
    }
  }
  families.push_back(std::move(states));
  for (const Figure<PageStats>& figure : kPageFigures) {
    MetricFamily family = family_of(figure.name, figure.help);
    for (const Grouped& pool : pools) {
      family.samples.push_back(
          {.labels = {{"pool", pool.name}}, .value = figure.value(pool.snapshot.pages)});
    }
    families.push_back(std::move(family));
  }
}

/// Calls visit(stats, labels) for each group of each pool.
template <class Visit>
void for_each_group(const std::vector<Grouped>& pools, Visit visit) {
  for (const Grouped& pool : pools) {
    for (std::size_t g = 0; g < static_cast<std::size_t>(pool.snapshot.num_groups); ++g) {
      visit(pool.snapshot.groups[g],
            std::vector<MetricLabel>{{"pool", pool.name},
                                     {"group", std::to_string(g)},
                                     {"kind", std::string(name_of(pool.snapshot.kinds[g]))}});
    }
  }
}

void add_groups(const std::vector<Grouped>& pools, Families& families) {
  MetricFamily states =
      family_of("kvarena_group_blocks", "Blocks of a group's pages by state; each is in one.");
  for_each_group(pools, [&](const GroupStats& group, const std::vector<MetricLabel>& labels) {
    for (const auto& [state, count] : kBlockStates) {
      MetricSample& sample = states.samples.emplace_back();
      sample.labels = labels;
      sample.labels.push_back({"state", state});
      sample.value = static_cast<double>(group.*count);
    }
  });
  families.push_back(std::move(states));
  for (const Figure<GroupStats>& figure : kGroupFigures) {
    MetricFamily family = family_of(figure.name, figure.help);
    for_each_group(pools, [&](const GroupStats& group, const std::vector<MetricLabel>& labels) {
      family.samples.push_back({.labels = labels, .value = figure.value(group)});
    });
    families.push_back(std::move(family));
  }
}

}  // namespace

void add_group_families(const std::vector<PoolHealth>& pools, const std::vector<std::string>& names,
                        Families& families) {
  std::vector<Grouped> grouped;
  for (std::size_t p = 0; p < pools.size(); ++p) {
    if (pools[p].snapshot.num_groups != 0) grouped.push_back({names[p], pools[p].snapshot});
  }
  if (grouped.empty()) return;
  add_pages(grouped, families);
  add_groups(grouped, families);
}

}  // namespace kvarena
