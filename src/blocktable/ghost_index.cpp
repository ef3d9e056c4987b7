#include "blocktable/ghost_index.hpp"

#include "base/range_checks.hpp"
#include "kvarena/base/layout.hpp"

#include <algorithm>
#include <bit>
#include <new>
#include <ranges>

namespace kvarena {
namespace {

constexpr std::uint64_t kAllHashes = std::uint64_t{1} << 32;
constexpr std::int64_t kMostSampled = std::int64_t{1} << 24;
constexpr std::int64_t kLargest = GhostIndex::kHalves.back();

/// Spreads ids that may be consecutive numbers (the finalizer of splitmix64).
constexpr std::uint64_t spread(std::uint64_t id) noexcept {
  id = (id ^ id >> 30) * 0xbf58476d1ce4e5b9U;
  id = (id ^ id >> 27) * 0x94d049bb133111ebU;
  return id ^ id >> 31;
}

std::uint64_t kept_hashes(const GhostIndexOptions& options) noexcept {
  const std::int64_t largest = options.num_blocks * kLargest / 2;
  if (largest <= options.max_sampled_blocks) return kAllHashes;
  const auto share = static_cast<double>(options.max_sampled_blocks) / static_cast<double>(largest);
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(share * double{kAllHashes}));
}

std::int64_t blocks_of(std::int64_t num_blocks, std::int64_t halves) noexcept {
  return std::max<std::int64_t>(1, num_blocks * halves / 2);
}

/// The blocks of a cache that sees so many of the hashes.
std::int64_t sampled_blocks(std::int64_t num_blocks, std::uint64_t kept) noexcept {
  if (kept == kAllHashes) return num_blocks;
  const double share = static_cast<double>(kept) / double{kAllHashes};
  return std::max<std::int64_t>(
      1, static_cast<std::int64_t>(static_cast<double>(num_blocks) * share + 0.5));
}

std::size_t num_buckets(std::int64_t capacity_blocks) noexcept {
  return std::bit_ceil(static_cast<std::size_t>(capacity_blocks));
}

}  // namespace

GhostCache::GhostCache(EvictionPolicy policy, std::int64_t capacity_blocks)
    : order_(policy, capacity_blocks),
      ids_(static_cast<std::size_t>(capacity_blocks)),
      chains_(static_cast<std::size_t>(capacity_blocks)),
      buckets_(num_buckets(capacity_blocks)) {}

std::size_t GhostCache::bucket_of(std::uint64_t id) const noexcept {
  return (spread(id) >> 32) % buckets_.size();
}

/// Returns the block of an id, plus 1; 0 where there is none.
std::uint32_t GhostCache::find(std::uint64_t id) const noexcept {
  std::uint32_t block = buckets_[bucket_of(id)];
  while (block != 0 && ids_[block - 1] != id) block = chains_[block - 1];
  return block;
}

void GhostCache::unlink(std::uint32_t block) noexcept {
  std::uint32_t* link = &buckets_[bucket_of(ids_[block - 1])];
  while (*link != block) link = &chains_[*link - 1];
  *link = chains_[block - 1];
}

/// The block to evict is chosen before the new one enters the order.
void GhostCache::touch(std::uint64_t id) noexcept {
  std::uint32_t block = find(id);
  if (block != 0) return order_.touch(BlockId(static_cast<std::int32_t>(block) - 1));
  if (order_.size() < capacity_blocks()) {
    block = static_cast<std::uint32_t>(order_.size()) + 1;
  } else {
    const BlockId evicted = order_.next();
    order_.remove(evicted);
    block = static_cast<std::uint32_t>(evicted.value) + 1;
    unlink(block);
  }
  ids_[block - 1] = id;
  std::uint32_t& bucket = buckets_[bucket_of(id)];
  chains_[block - 1] = bucket;
  bucket = block;
  order_.insert(BlockId(static_cast<std::int32_t>(block) - 1));
}

Result<GhostIndex> GhostIndex::create(const GhostIndexOptions& options) {
  if (Status s = check_option(Option::num_blocks, options.num_blocks, 1,
                              KvLayout::kMaxBlocks / (kLargest / 2));
      !s) {
    return s;
  }
  if (options.max_sampled_blocks < kLargest / 2 || options.max_sampled_blocks > kMostSampled) {
    return invalid_argument(Resource::capacity, options.max_sampled_blocks, kLargest / 2,
                            kMostSampled);
  }
  for (const EvictionPolicy policy : options.policies) {
    if (Status s = check_enum(Option::eviction, policy, EvictionPolicy::lfu); !s) return s;
  }
  try {
    return GhostIndex(options);
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, static_cast<std::uint64_t>(host_bytes(options)), 0);
  }
}

GhostIndex::GhostIndex(const GhostIndexOptions& options)
    : num_blocks_(options.num_blocks), kept_(kept_hashes(options)) {
  caches_.reserve(options.policies.size() * kHalves.size());
  for (const EvictionPolicy policy : options.policies) {
    for (const std::int64_t halves : kHalves) {
      const std::int64_t blocks = blocks_of(num_blocks_, halves);
      caches_.push_back({GhostCache(policy, sampled_blocks(blocks, kept_)), blocks, 0});
    }
  }
}

std::int64_t GhostIndex::host_bytes(const GhostIndexOptions& options) noexcept {
  std::int64_t bytes = 0;
  for (const EvictionPolicy policy : options.policies) {
    for (const std::int64_t halves : kHalves) {
      const std::int64_t blocks =
          sampled_blocks(blocks_of(options.num_blocks, halves), kept_hashes(options));
      bytes += EvictionOrder::bytes(policy, blocks) + static_cast<std::int64_t>(sizeof(Cache)) +
               blocks * static_cast<std::int64_t>(sizeof(std::uint64_t) + sizeof(std::uint32_t)) +
               static_cast<std::int64_t>(num_buckets(blocks) * sizeof(std::uint32_t));
    }
  }
  return bytes;
}

bool GhostIndex::is_sampled(std::uint64_t id) const noexcept {
  return (spread(id) & (kAllHashes - 1)) < kept_;
}

/// First the hits of all caches are counted, then the ids are used, as in a replay.
void GhostIndex::observe(std::span<const std::uint64_t> ids) noexcept {
  const auto is_seen = [this](std::uint64_t id) { return is_sampled(id); };
  block_refs_ += static_cast<std::int64_t>(ids.size());
  sampled_refs_ += std::ranges::count_if(ids, is_seen);
  for (Cache& cache : caches_) {
    for (const std::uint64_t id : ids) {
      if (!is_seen(id)) continue;
      if (!cache.ids.contains(id)) break;
      ++cache.hits;
    }
    const bool from_tail = begins_at_tail(cache.ids.policy());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::uint64_t id = ids[from_tail ? ids.size() - 1 - i : i];
      if (is_seen(id)) cache.ids.touch(id);
    }
  }
}

/// Whether the few ids that are used most are in the sample decides how many references are. These
/// ids are hits in every cache, so the references that lack or exceed the share count as hits (the
/// correction of Waldspurger et al., SHARDS, FAST '15).
double GhostIndex::hit_rate(std::size_t cache) const noexcept {
  if (block_refs_ == 0) return 0.0;
  const double expected = static_cast<double>(block_refs_) * sampled_share();
  const double lacking = expected - static_cast<double>(sampled_refs_);
  return std::clamp((static_cast<double>(caches_[cache].hits) + lacking) / expected, 0.0, 1.0);
}

std::vector<GhostReport> GhostIndex::reports() const {
  std::vector<GhostReport> reports;
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    reports.push_back({caches_[i].ids.policy(), caches_[i].num_blocks, hit_rate(i)});
  }
  return reports;
}

double GhostIndex::sampled_share() const noexcept {
  return static_cast<double>(kept_) / double{kAllHashes};
}

}  // namespace kvarena
