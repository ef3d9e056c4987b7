#include "effects/cache_site.hpp"

#include <algorithm>

namespace kvarena::test {

std::uint64_t CacheSite::salt_of(SequenceId id) const {
  const auto sequence = std::find_if(sequences_.begin(), sequences_.end(),
                                     [&](const Sequence& s) { return s.id == id; });
  return sequence == sequences_.end() ? 0 : sequence->salt;
}

void CacheSite::set_limits(const Numbers& n) {
  if (!options_.has_accounts) return;
  const std::uint64_t salt = n[0] % 2;
  SaltLimits limits;
  if (n[1] % 3 != 0) limits.floor_blocks = n[1] % (options_.num_blocks / 2);
  if (n[2] % 2 == 1) {
    limits.cap_blocks = std::max<std::int64_t>(1, limits.floor_blocks) + n[3] / 4 % 8;
  }
  const bool is_wrong = n[2] % 16 == 14;
  if (is_wrong) limits.floor_blocks = options_.num_blocks + 1;
  const Status status =
      guarded("set_salt_limits", [&] { return cache_.set_salt_limits(salt, limits); });
  if (is_wrong == static_cast<bool>(status)) fail("limits", "limits were not refused, or were");
  if (!status) return;
  end_floor(salt);
  story_.tell(site_, "tenant ", salt, " has a floor of ", limits.floor_blocks, " and ",
              limits.cap_blocks == SaltLimits::kNoCap
                  ? std::string("no cap")
                  : "a cap of " + std::to_string(limits.cap_blocks));
}

/// What its tenant's floor will keep of a sequence that ends: of the blocks that it shares with
/// whoever asks for the same, the first ones.
CacheSite::Floor CacheSite::floor_of(const Sequence& sequence) const {
  Floor floor;
  if (!options_.has_accounts || sequence.is_import) return floor;
  const std::int64_t most = cache_.tables().salt_figures(sequence.salt)->limits.floor_blocks;
  const std::int64_t size = options_.block_size_tokens;
  while (floor.blocks < most && (floor.blocks + 1) * size <= std::ssize(sequence.words)) {
    const BlockId block = cache_.tables().lookup(sequence.id, floor.blocks).value();
    if (cache_.manager().content(block) != BlockContent::published) break;
    ++floor.blocks;
  }
  for (std::int64_t i = 0; i < floor.blocks * size; ++i) {
    floor.tokens.push_back(tokens_[sequence.words[static_cast<std::size_t>(i)]]);
  }
  floor.tokens.push_back(0);  // one token is left to compute
  floor.keys = sequence.keys;
  const PrefixStats stats = cache_.tables().prefix_stats();
  floor.forgotten = stats.removals_by[static_cast<std::size_t>(PrefixRemoval::forgotten)];
  return floor;
}

/// The tenants whose sequences the step has grown.
void CacheSite::end_floors_of_step() {
  for (const Growth& growth : growths_) end_floor(salt_of(growth.id));
}

void CacheSite::judge_floors() {
  if (!options_.has_accounts || failure_) return;
  const PrefixStats stats = cache_.tables().prefix_stats();
  const std::uint64_t forgotten =
      stats.removals_by[static_cast<std::size_t>(PrefixRemoval::forgotten)];
  for (std::uint64_t salt = 0; salt < 2; ++salt) {
    const std::optional<Floor>& floor = floors_[salt];
    if (!floor || floor->blocks == 0 || floor->forgotten != forgotten) continue;
    const std::int64_t found = cache_.tables().match({floor->tokens, salt, floor->keys})->blocks;
    if (found >= floor->blocks) continue;
    fail("floor", "the floor of tenant " + std::to_string(salt) + " keeps " +
                      std::to_string(floor->blocks) + " blocks, and " + std::to_string(found) +
                      " are found");
  }
}

CacheSite::Registered CacheSite::registered() const {
  if (!options_.has_accounts) return {};
  return {cache_.tables().salt_figures(0)->registered, cache_.tables().salt_figures(1)->registered};
}

/// A call that takes a tenant past its cap has left none of its blocks that nobody uses.
void CacheSite::judge_caps(const char* name, const Registered& before) {
  if (!options_.has_accounts) return;
  const Explanation now = cache_.tables().explain(0);
  if (now.stats.referenced + now.stats.fenced > SaltLimits::kPassedOver) return;
  for (std::uint64_t salt = 0; salt < 2; ++salt) {
    const SaltFigures figures = cache_.tables().salt_figures(salt).value();
    if (figures.registered <= std::max(before[salt], figures.limits.cap_blocks)) continue;
    for (std::size_t i = 0; i < now.num_salts; ++i) {
      if (now.evictable_salts[i].salt != salt) continue;
      fail("cap", std::string(name) + " takes tenant " + std::to_string(salt) + " to " +
                      std::to_string(figures.registered) + " blocks past its cap of " +
                      std::to_string(figures.limits.cap_blocks) + ", and nobody uses " +
                      std::to_string(now.evictable_salts[i].blocks));
    }
  }
}

}  // namespace kvarena::test
