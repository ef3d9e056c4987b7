#include "health/render/figures.hpp"

#include <array>

namespace kvarena {
namespace {

constexpr double kMillion = 1e6;

struct NamedHistogram {
  MetricName name;
  PrefixHistogram PrefixUse::*histogram;
};

constexpr NamedHistogram kHistograms[] = {
    {{"kvarena_prefix_lifetime_registrations",
      "Blocks registered from a cached block's registration to its removal."},
     &PrefixUse::lifetime},
    {{"kvarena_prefix_idle_registrations",
      "Blocks registered since an evicted block was registered or last found."},
     &PrefixUse::idle},
    {{"kvarena_prefix_reuse_gap_registrations",
      "Blocks registered since a found block was registered or last found."},
     &PrefixUse::reuse_gap},
};

template <auto Member>
constexpr auto kStats = member_of<PrefixStats, Member>;

constexpr Figure<PrefixStats> kFigures[] = {
    {{"kvarena_prefix_registered_blocks", "Blocks registered now."},
     kStats<&PrefixStats::registered>},
    {{"kvarena_prefix_published_blocks", "Of these, those that can be found."},
     kStats<&PrefixStats::published>},
    {{"kvarena_prefix_registrations_total", "Blocks registered."},
     kStats<&PrefixStats::registrations>},
    {{"kvarena_prefix_queries_total", "Sequences that asked for a cached prefix."},
     kStats<&PrefixStats::queries>},
    {{"kvarena_prefix_query_tokens_total", "Tokens that they asked for."},
     kStats<&PrefixStats::query_tokens>},
    {{"kvarena_prefix_hits_total", "Sequences of which at least a block was cached."},
     kStats<&PrefixStats::hits>},
    {{"kvarena_prefix_hit_blocks_total", "Blocks found."}, kStats<&PrefixStats::hit_blocks>},
    {{"kvarena_prefix_hit_tokens_total", "Tokens found."}, kStats<&PrefixStats::hit_tokens>},
    {{"kvarena_prefix_duplicate_blocks_total",
      "Blocks computed while an equal one was registered."},
     kStats<&PrefixStats::duplicates>},
    {{"kvarena_prefix_shared_blocks_total", "Of these, those given up for the registered one."},
     kStats<&PrefixStats::shared>},
    {{"kvarena_prefix_broken_chains_total", "Sequences that stopped to register blocks."},
     kStats<&PrefixStats::broken_chains>},
};

/// How a size of a ghost is called: in pools.
std::string size_name(std::int64_t halves) {
  return halves % 2 == 0 ? std::to_string(halves / 2) : "0.5";
}

/// A family with a sample of each element of an array whose indices are a `Reason`.
template <class Reason, class Counts>
void add_reasons(const MetricName& name, const char* label, Counts PrefixStats::*counts,
                 const std::vector<Labelled<PrefixStats>>& caches, Families& families) {
  MetricFamily& family = families.emplace_back(family_of(name));
  for (const auto& [stats, labels] : caches) {
    for (std::size_t i = 0; i < (stats.*counts).size(); ++i) {
      add_sample(family, number((stats.*counts)[i]),
                 with(labels, label, name_of(static_cast<Reason>(i))));
    }
  }
}

void add_histograms(const std::vector<Labelled<PrefixUse>>& caches, Families& families) {
  for (const NamedHistogram& named : kHistograms) {
    MetricFamily& family = families.emplace_back(family_of(named.name));
    family.type = MetricType::histogram;
    for (const auto& [use, labels] : caches) {
      const PrefixHistogram& histogram = use.*named.histogram;
      add_sample(family, number(histogram.sum), labels);
      MetricSample& sample = family.samples.back();
      sample.count = histogram.total();
      std::uint64_t up_to = 0;
      for (std::size_t i = 0; i + 1 < PrefixHistogram::kNumBuckets; ++i) {
        up_to += histogram.counts[i];
        sample.buckets.push_back({static_cast<double>(PrefixHistogram::bound(i)), up_to});
      }
    }
  }
}

void add_ghosts(const std::vector<Labelled<PrefixUse>>& caches, Families& families) {
  MetricFamily rates =
      family_of({"kvarena_prefix_ghost_hit_ratio",
                 "Share of block references that a cache of so many pools would have found."});
  MetricFamily sampled = family_of({"kvarena_prefix_ghost_sampled_ratio",
                                    "Share of block ids from which those ratios are estimated."});
  for (const auto& [use, labels] : caches) {
    if (use.ghost_sampled_ppm == 0) continue;
    add_sample(sampled, static_cast<double>(use.ghost_sampled_ppm) / kMillion, labels);
    for (std::size_t p = 0; p < kGhostPolicies.size(); ++p) {
      for (std::size_t s = 0; s < kGhostHalves.size(); ++s) {
        add_sample(rates, static_cast<double>(use.ghost_hits_ppm[p][s]) / kMillion,
                   with(with(labels, "policy", name_of(kGhostPolicies[p])), "pools",
                        size_name(kGhostHalves[s])));
      }
    }
  }
  if (sampled.samples.empty()) return;
  families.push_back(std::move(rates));
  families.push_back(std::move(sampled));
}

}  // namespace

void add_prefix_families(const LabelledPools& pools, Families& families) {
  std::vector<Labelled<PrefixStats>> stats;
  std::vector<Labelled<PrefixUse>> uses;
  for (const auto& [pool, labels] : pools) {
    if (pool.snapshot.has_prefix_cache == 0) continue;
    stats.push_back({pool.snapshot.prefix, labels});
    uses.push_back({pool.snapshot.prefix_use, labels});
  }
  if (stats.empty()) return;
  add_figures(kFigures, stats, 0, families);
  add_reasons<PrefixStop>(
      {"kvarena_prefix_stops_total", "Why a sequence found no more, by reason."}, "reason",
      &PrefixStats::stops, stats, families);
  add_reasons<PrefixRemoval>(
      {"kvarena_prefix_removals_total", "Blocks that ceased to be registered, by cause."}, "cause",
      &PrefixStats::removals_by, stats, families);
  add_histograms(uses, families);
  add_ghosts(uses, families);
}

}  // namespace kvarena
