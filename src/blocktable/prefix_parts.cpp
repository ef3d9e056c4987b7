// Parts of blocks: where a match stops, a sequence can begin with the first tokens of a cached
// block whose other tokens differ. It copies that block before it goes on, as for any shared last
// block.

#include "blocktable/prefix_cache.hpp"

#include <algorithm>

namespace kvarena {
namespace {

/// Blocks that are looked at, so that the time of a match is bounded.
constexpr int kMostLookedAt = 8;

}  // namespace

/// Counts the leading tokens of a query's next block, at most `most`, that a registered block has
/// too, under the same extra keys. A key changes its first token and all behind it.
std::int64_t PrefixCache::equal_beginning(const PrefixQuery& query, std::int64_t begin, BlockId id,
                                          std::int64_t most) const noexcept {
  const std::int32_t* const own = query.tokens.data() + begin;
  const std::int32_t* const its = index_.tokens_of(id);
  std::int64_t end = std::mismatch(own, own + most, its).first - own;
  auto key = std::ranges::lower_bound(query.extra_keys, begin, {}, &ExtraKey::first_token);
  const std::size_t num_keys = index_.block(id).num_keys();
  for (std::size_t i = 0; i < num_keys || key != query.extra_keys.end(); ++i, ++key) {
    const bool has_own = key != query.extra_keys.end();
    const std::int64_t own_first = has_own ? key->first_token - begin : most;
    const ExtraKey known = i < num_keys ? index_.key_of(id, i) : ExtraKey{.first_token = most};
    if (has_own && i < num_keys && own_first == known.first_token && key->key == known.key) {
      continue;
    }
    return std::min({end, own_first, known.first_token});
  }
  return end;
}

void PrefixCache::find_part(const PrefixQuery& query, std::span<BlockId> ids,
                            std::span<Generation> generations, PrefixMatch& match) const noexcept {
  const auto place = static_cast<std::size_t>(match.blocks);
  if (!shares_parts_ || place == 0 || place == ids.size()) return;
  const auto size = static_cast<std::int64_t>(block_size_);
  const std::int64_t begin = match.blocks * size;
  const std::int64_t most = std::min(std::ssize(query.tokens) - begin, size) - 1;
  int left = most > 0 ? kMostLookedAt : 0;
  BlockId id = index_.first_child(ids[place - 1]);
  for (; id != kNoBlock && left > 0; id = index_.next_sibling(id), --left) {
    const PrefixBlock& block = index_.block(id);
    if (!block.is_published()) continue;
    const std::int64_t count = equal_beginning(query, begin, id, most);
    if (count <= match.part_tokens) continue;
    if (!contents_.can_be_found(id, block.generation)) continue;
    match.part_tokens = count;
    ids[place] = id;
    generations[place] = block.generation;
  }
  match.tokens += match.part_tokens;
}

/// The sequence knows the tokens of its part: it fills the block that they begin.
void PrefixCache::adopt_part(std::uint32_t slot, BlockId part) noexcept {
  count_reuses(std::span(&part, 1));
  keep_tail(slot, part, chains_[slot].found.part_tokens);
}

}  // namespace kvarena
