// What the prefix cache of a cache tells about itself: names, figures, events.

#include "capi/objects.hpp"
#include "capi/prefix.hpp"

#include <algorithm>
#include <cstddef>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

static_assert(kNumPrefixStops <= KVARENA_MAX_PREFIX_REASONS);
static_assert(kNumPrefixRemovals <= KVARENA_MAX_PREFIX_REASONS);
static_assert(KVARENA_REMOVED_OVER_CAP == static_cast<int>(PrefixRemoval::over_cap));
static_assert(KVARENA_PREFIX_CLEARED == static_cast<int>(PrefixEventKind::cleared));
static_assert(PrefixHistogram::kNumBuckets == KVARENA_PREFIX_BUCKETS);
static_assert(kGhostPolicies.size() * kGhostHalves.size() <= KVARENA_MAX_GHOSTS);

/// The number of an enumerator; 255, which is none, for what no enumerator can be.
std::uint8_t byte_of(std::int32_t number) noexcept {
  return number >= 0 && number < 255 ? static_cast<std::uint8_t>(number) : std::uint8_t{255};
}

kvarena_prefix_histogram histogram_to_c(const PrefixHistogram& histogram) noexcept {
  kvarena_prefix_histogram result{};
  std::copy(histogram.counts.begin(), histogram.counts.end(), result.counts);
  result.sum = histogram.sum;
  return result;
}

}  // namespace

kvarena_prefix_stats kvarena::capi::to_c(const PrefixStats& now) noexcept {
  kvarena_prefix_stats result{};
  result.registered = now.registered;
  result.published = now.published;
  result.registrations = now.registrations;
  result.removals = now.removals;
  result.queries = now.queries;
  result.query_tokens = now.query_tokens;
  result.hits = now.hits;
  result.hit_blocks = now.hit_blocks;
  result.hit_tokens = now.hit_tokens;
  result.duplicates = now.duplicates;
  result.shared = now.shared;
  result.broken_chains = now.broken_chains;
  std::copy(now.stops.begin(), now.stops.end(), result.stops);
  std::copy(now.removals_by.begin(), now.removals_by.end(), result.removals_by);
  return result;
}

kvarena_prefix_use kvarena::capi::to_c(const PrefixUse& use) noexcept {
  kvarena_prefix_use result{};
  result.lifetime = histogram_to_c(use.lifetime);
  result.idle = histogram_to_c(use.idle);
  result.reuse_gap = histogram_to_c(use.reuse_gap);
  result.ghost_sampled_ppm = use.ghost_sampled_ppm;
  result.ghost_references = use.ghost_references;
  if (use.ghost_sampled_ppm == 0) return result;  // no ghosts
  for (std::size_t p = 0; p < kGhostPolicies.size(); ++p) {
    for (std::size_t s = 0; s < kGhostHalves.size(); ++s) {
      kvarena_ghost& ghost = result.ghosts[result.num_ghosts++];
      ghost.policy = static_cast<std::int32_t>(kGhostPolicies[p]);
      ghost.half_pools = static_cast<std::int32_t>(kGhostHalves[s]);
      ghost.hits_ppm = use.ghost_hits_ppm[p][s];
    }
  }
  return result;
}

void EventAdapter::tell(const PrefixEvent& event, void* adapter) {
  kvarena_prefix_event given{};
  given.struct_size = sizeof given;
  given.number = event.number;
  given.salt = event.salt;
  given.tokens = event.tokens.data();
  given.num_tokens = event.tokens.size();
  given.extra_keys = reinterpret_cast<const kvarena_extra_key*>(event.extra_keys.data());
  given.num_extra_keys = event.extra_keys.size();
  given.kind = static_cast<std::int32_t>(event.kind);
  given.removal = static_cast<std::int32_t>(event.removal);
  given.block = event.block.value;
  given.parent = event.parent.value;
  const auto& its = *static_cast<const EventAdapter*>(adapter);
  its.function_(its.user_, &given);
}

const char* kvarena_name_of_prefix_stop(int32_t stop) {
  return name_of(static_cast<PrefixStop>(byte_of(stop))).data();
}

const char* kvarena_name_of_prefix_removal(int32_t removal) {
  return name_of(static_cast<PrefixRemoval>(byte_of(removal))).data();
}

const char* kvarena_name_of_prefix_event(int32_t kind) {
  return name_of(static_cast<PrefixEventKind>(byte_of(kind))).data();
}

kvarena_status kvarena_prefix_ask(kvarena_cache* cache, kvarena_prefix_stats* stats) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(stats); !s) return s;
    write_struct(to_c(object.get().tables().prefix_stats()), stats);
    return {};
  });
}

kvarena_status kvarena_prefix_ask_use(kvarena_cache* cache, kvarena_prefix_use* use) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(use); !s) return s;
    write_struct(to_c(object.get().tables().prefix_use()), use);
    return {};
  });
}

kvarena_status kvarena_prefix_snapshot(kvarena_cache* cache, kvarena_prefix_stats* stats,
                                       kvarena_prefix_use* use) {
  return visit<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (stats != nullptr) {
      if (Status s = check_target(stats); !s) return s;
    }
    if (use != nullptr) {
      if (Status s = check_target(use); !s) return s;
    }
    const PoolSnapshot published = object.get().snapshot();
    if (stats != nullptr) write_struct(to_c(published.prefix), stats);
    if (use != nullptr) write_struct(to_c(published.prefix_use), use);
    return {};
  });
}

// ---- accounts of salts --------------------------------------------------------------------------

kvarena_status kvarena_salt_set_limits(kvarena_cache* cache, uint64_t salt,
                                       const kvarena_salt_limits* limits) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    kvarena_salt_limits given;
    if (Status s = read_optional_struct(limits, given); !s) return s;
    SaltLimits wanted;
    wanted.floor_blocks = given.floor_blocks;
    if (given.cap_blocks != 0) wanted.cap_blocks = given.cap_blocks;
    return object.get().set_salt_limits(salt, wanted);
  });
}

kvarena_status kvarena_salt_ask(kvarena_cache* cache, uint64_t salt, kvarena_salt_info* info) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(info); !s) return s;
    const Result<SaltFigures> figures = object.get().tables().salt_figures(salt);
    if (!figures) return figures.status();
    const SaltLimits& limits = figures->limits;
    kvarena_salt_info result{};
    result.registered = figures->registered;
    result.kept = figures->kept;
    result.sequences = figures->sequences;
    result.floor_blocks = limits.floor_blocks;
    result.cap_blocks = limits.cap_blocks == SaltLimits::kNoCap ? 0 : limits.cap_blocks;
    write_struct(result, info);
    return {};
  });
}

kvarena_status kvarena_salt_close(kvarena_cache* cache, uint64_t salt) {
  return enter<CacheObject>(
      cache, [&](CacheObject& object) { return object.get().close_salt_account(salt); });
}
