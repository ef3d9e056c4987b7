// What the prefix cache tells about itself: times of its blocks, ghosts, events.

#include "blocktable/prefix_cache.hpp"

#include <algorithm>
#include <array>

namespace kvarena {
namespace {

constexpr std::array<std::string_view, 3> kEventNames = {"stored", "removed", "cleared"};
constexpr double kMillion = 1e6;

}  // namespace

std::string_view name_of(PrefixEventKind kind) noexcept {
  const auto number = static_cast<std::size_t>(kind);
  return number < kEventNames.size() ? kEventNames[number] : "unknown_event";
}

/// Blocks of one prefix were mostly found at the same time before, so runs of one gap are counted
/// at once.
void PrefixCache::count_reuses(std::span<const BlockId> ids) noexcept {
  std::uint32_t gap = 0;
  std::uint64_t run = 0;
  for (const BlockId id : ids) {
    PrefixBlock& block = index_.block(id);
    const std::uint32_t its = now() - block.last_use;
    block.last_use = now();
    if (its != gap) {
      use_.reuse_gap.add(gap, run);
      run = 0;
    }
    gap = its;
    ++run;
  }
  use_.reuse_gap.add(gap, run);
}

/// Times are differences modulo 2^32.
void PrefixCache::count_removal(BlockId id, PrefixRemoval removal) noexcept {
  if (const std::uint32_t* birth = birth_of(id); birth != nullptr) {
    use_.lifetime.add(now() - *birth, 1);
  }
  const bool is_eviction = removal == PrefixRemoval::evicted || removal == PrefixRemoval::over_cap;
  if (is_eviction) use_.idle.add(now() - index_.block(id).last_use, 1);
}

/// Hashes the full blocks of a query, and plays them through the ghosts.
void PrefixCache::observe(const PrefixQuery& query) noexcept {
  const auto size = static_cast<std::int64_t>(block_size_);
  const std::int64_t most =
      std::min(std::ssize(query.tokens) / size, static_cast<std::int64_t>(ghost_ids_.size()));
  Hashed at;
  at.root = hash_.root_of(query.salt);
  std::array<Hash128, PrefixHash::kBatch> chains;
  while (at.blocks < most) {
    const auto count = static_cast<std::size_t>(
        std::min(most - at.blocks, static_cast<std::int64_t>(PrefixHash::kBatch)));
    hash_.extend(at.chain, query.tokens.data() + at.blocks * size, block_size_,
                 std::span(chains).first(count));
    at.chain = chains[count - 1];
    for (std::size_t i = 0; i < count; ++i, ++at.blocks) {
      const auto its = keys_in_block(query.extra_keys, at.next_key, at.blocks);
      if (!its.empty()) at.root = hash_.root_with(at.root, its);
      at.next_key += its.size();
      ghost_ids_[static_cast<std::size_t>(at.blocks)] = (chains[i] ^ at.root).low;
    }
  }
  ghosts_->observe(std::span(ghost_ids_.data(), static_cast<std::size_t>(most)));
}

PrefixUse PrefixCache::use() const noexcept {
  PrefixUse use = use_;
  use.eviction = static_cast<std::int64_t>(manager_->eviction());
  if (ghosts_ == nullptr) return use;
  use.ghost_sampled_ppm = static_cast<std::int64_t>(ghosts_->sampled_share() * kMillion);
  use.ghost_references = static_cast<std::uint64_t>(ghosts_->block_refs());
  for (std::size_t p = 0; p < kGhostPolicies.size(); ++p) {
    for (std::size_t s = 0; s < kGhostHalves.size(); ++s) {
      const double rate = ghosts_->hit_rate(p * kGhostHalves.size() + s);
      use.ghost_hits_ppm[p][s] = static_cast<std::int64_t>(rate * kMillion + 0.5);
    }
  }
  return use;
}

void PrefixCache::tell_stored(BlockId id, std::uint64_t salt) noexcept {
  std::array<ExtraKey, PrefixOptions::kMostExtraKeys> keys;
  const std::size_t num_keys = index_.block(id).num_keys();
  for (std::size_t k = 0; k < num_keys; ++k) keys[k] = index_.key_of(id, k);
  events_.tell({.number = ++events_told_,
                .kind = PrefixEventKind::stored,
                .block = id,
                .parent = index_.parent_of(id).block(),
                .salt = salt,
                .tokens = std::span(index_.tokens_of(id), block_size_),
                .extra_keys = std::span(keys).first(num_keys)},
               events_.context);
}

void PrefixCache::tell_removed(BlockId id, PrefixRemoval removal) noexcept {
  events_.tell(
      {.number = ++events_told_, .kind = PrefixEventKind::removed, .removal = removal, .block = id},
      events_.context);
}

}  // namespace kvarena
