#include "health/render/prefix.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace kvarena {
namespace {

constexpr double kMillion = 1e6;

struct NamedHistogram {
  const char* name;
  const char* help;
  PrefixHistogram PrefixUse::*histogram;
};

constexpr NamedHistogram kHistograms[] = {
    {"kvarena_prefix_lifetime_registrations",
     "Blocks registered from a cached block's registration to its removal.", &PrefixUse::lifetime},
    {"kvarena_prefix_idle_registrations",
     "Blocks registered since an evicted block was registered or last found.", &PrefixUse::idle},
    {"kvarena_prefix_reuse_gap_registrations",
     "Blocks registered since a found block was registered or last found.", &PrefixUse::reuse_gap},
};

struct Figure {
  const char* name;
  const char* help;
  double (*value)(const PrefixStats& stats);
};

template <auto Member>
double member_of(const PrefixStats& stats) {
  return static_cast<double>(stats.*Member);
}

constexpr Figure kFigures[] = {
    {"kvarena_prefix_registered_blocks", "Blocks registered now.",
     member_of<&PrefixStats::registered>},
    {"kvarena_prefix_published_blocks", "Of these, those that can be found.",
     member_of<&PrefixStats::published>},
    {"kvarena_prefix_registrations_total", "Blocks registered.",
     member_of<&PrefixStats::registrations>},
    {"kvarena_prefix_queries_total", "Sequences that asked for a cached prefix.",
     member_of<&PrefixStats::queries>},
    {"kvarena_prefix_query_tokens_total", "Tokens that they asked for.",
     member_of<&PrefixStats::query_tokens>},
    {"kvarena_prefix_hits_total", "Sequences of which at least a block was cached.",
     member_of<&PrefixStats::hits>},
    {"kvarena_prefix_hit_blocks_total", "Blocks found.", member_of<&PrefixStats::hit_blocks>},
    {"kvarena_prefix_hit_tokens_total", "Tokens found.", member_of<&PrefixStats::hit_tokens>},
    {"kvarena_prefix_duplicate_blocks_total", "Blocks computed while an equal one was registered.",
     member_of<&PrefixStats::duplicates>},
    {"kvarena_prefix_shared_blocks_total", "Of these, those given up for the registered one.",
     member_of<&PrefixStats::shared>},
    {"kvarena_prefix_broken_chains_total", "Sequences that stopped to register blocks.",
     member_of<&PrefixStats::broken_chains>},
};

/// How a size of a ghost is called: in pools.
std::string size_name(std::int64_t halves) {
  return halves % 2 == 0 ? std::to_string(halves / 2) : "0.5";
}

using Families = std::vector<MetricFamily>;
using Names = std::vector<std::string>;

MetricFamily family_of(const char* name, const char* help) {
  const bool counts = std::string_view(name).ends_with("_total");
  return {name, help, counts ? MetricType::counter : MetricType::gauge, {}};
}

MetricSample sample_of(std::initializer_list<MetricLabel> labels, double value) {
  return {.labels = labels, .value = value};
}

/// A pool with a prefix cache.
struct Cached {
  const std::string& name;
  const PoolSnapshot& snapshot;
};

void add_reasons(const std::vector<Cached>& pools, Families& families) {
  MetricFamily stops =
      family_of("kvarena_prefix_stops_total", "Why a sequence found no more, by reason.");
  MetricFamily removals =
      family_of("kvarena_prefix_removals_total", "Blocks that ceased to be registered, by cause.");
  for (const Cached& pool : pools) {
    const PrefixStats& stats = pool.snapshot.prefix;
    for (std::size_t i = 0; i < kNumPrefixStops; ++i) {
      const std::string_view name = name_of(static_cast<PrefixStop>(i));
      stops.samples.push_back(sample_of({{"pool", pool.name}, {"reason", std::string(name)}},
                                        static_cast<double>(stats.stops[i])));
    }
    for (std::size_t i = 0; i < kNumPrefixRemovals; ++i) {
      const std::string_view name = name_of(static_cast<PrefixRemoval>(i));
      removals.samples.push_back(sample_of({{"pool", pool.name}, {"cause", std::string(name)}},
                                           static_cast<double>(stats.removals_by[i])));
    }
  }
  families.push_back(std::move(stops));
  families.push_back(std::move(removals));
}

void add_histograms(const std::vector<Cached>& pools, Families& families) {
  for (const NamedHistogram& named : kHistograms) {
    MetricFamily family{named.name, named.help, MetricType::histogram, {}};
    for (const Cached& pool : pools) {
      const PrefixHistogram& histogram = pool.snapshot.prefix_use.*named.histogram;
      MetricSample sample = sample_of({{"pool", pool.name}}, static_cast<double>(histogram.sum));
      sample.count = histogram.total();
      std::uint64_t up_to = 0;
      for (std::size_t i = 0; i + 1 < PrefixHistogram::kNumBuckets; ++i) {
        up_to += histogram.counts[i];
        sample.buckets.push_back({static_cast<double>(PrefixHistogram::bound(i)), up_to});
      }
      family.samples.push_back(std::move(sample));
    }
    families.push_back(std::move(family));
  }
}

void add_ghosts(const std::vector<Cached>& pools, Families& families) {
  MetricFamily rates =
      family_of("kvarena_prefix_ghost_hit_ratio",
                "Share of block references that a cache of so many pools would have found.");
  MetricFamily sampled = family_of("kvarena_prefix_ghost_sampled_ratio",
                                   "Share of block ids from which those ratios are estimated.");
  for (const Cached& pool : pools) {
    const PrefixUse& use = pool.snapshot.prefix_use;
    if (use.ghost_sampled_ppm == 0) continue;
    sampled.samples.push_back(
        sample_of({{"pool", pool.name}}, static_cast<double>(use.ghost_sampled_ppm) / kMillion));
    for (std::size_t p = 0; p < kGhostPolicies.size(); ++p) {
      for (std::size_t s = 0; s < kGhostHalves.size(); ++s) {
        rates.samples.push_back(
            sample_of({{"pool", pool.name},
                       {"policy", std::string(name_of(kGhostPolicies[p]))},
                       {"pools", size_name(kGhostHalves[s])}},
                      static_cast<double>(use.ghost_hits_ppm[p][s]) / kMillion));
      }
    }
  }
  if (sampled.samples.empty()) return;
  families.push_back(std::move(rates));
  families.push_back(std::move(sampled));
}

}  // namespace

void add_prefix_families(const std::vector<PoolHealth>& pools, const Names& names,
                         Families& families) {
  std::vector<Cached> cached;
  for (std::size_t p = 0; p < pools.size(); ++p) {
    if (pools[p].snapshot.has_prefix_cache != 0) cached.push_back({names[p], pools[p].snapshot});
  }
  if (cached.empty()) return;
  for (const Figure& figure : kFigures) {
    MetricFamily family = family_of(figure.name, figure.help);
    for (const Cached& pool : cached) {
      family.samples.push_back(
          sample_of({{"pool", pool.name}}, figure.value(pool.snapshot.prefix)));
    }
    families.push_back(std::move(family));
  }
  add_reasons(cached, families);
  add_histograms(cached, families);
  add_ghosts(cached, families);
}

}  // namespace kvarena
