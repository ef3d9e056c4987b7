// Parts of blocks in the naive model of the prefix cache.

#include "model/naive_prefix.hpp"

#include <algorithm>
#include <utility>

namespace kvarena::model {
namespace {

constexpr std::size_t kLookedAt = 8;

}  // namespace

/// Words of a content that belong to token `token` of its last block: the token, and the extra keys
/// that begin there.
std::vector<std::int64_t> NaivePrefix::words_of(const Content& content, std::size_t token) const {
  const std::size_t begin = content.size() - block_size_ - words_of_keys();
  const std::size_t number = (begin - 1) / (block_size_ + words_of_keys()) * block_size_ + token;
  std::vector<std::int64_t> words{content[begin + token]};
  for (std::size_t i = begin + block_size_; i < content.size(); i += 2) {
    const bool is_key = content[i] != 0;
    if (is_key && content[i + 1] == static_cast<std::int64_t>(number)) words.push_back(content[i]);
  }
  return words;
}

/// The newest blocks behind those found are compared token by token.
std::optional<Handle> NaivePrefix::find_part(const PrefixQuery& query, PrefixMatch& match) const {
  const auto covered = static_cast<std::size_t>(match.tokens);
  if (!options_.share_parts || match.blocks == 0 || match.blocks == pool_.num_blocks()) return {};
  std::vector<std::int32_t> tokens(query.tokens.begin(), query.tokens.end());
  const std::size_t most = std::min(tokens.size() - covered, block_size_) - 1;
  tokens.resize(std::max(tokens.size(), covered + block_size_));
  const auto blocks = static_cast<std::size_t>(match.blocks);
  const Content before = content_of(query.salt, query.extra_keys, tokens, blocks);
  const Content wanted = content_of(query.salt, query.extra_keys, tokens, blocks + 1);
  std::vector<std::pair<std::uint64_t, Content>> children;
  for (const auto& [content, entry] : entries_) {
    if (content.size() != wanted.size() || !begins_with(content, before)) continue;
    children.emplace_back(entry.number, content);
  }
  std::sort(children.rbegin(), children.rend());
  if (children.size() > kLookedAt) children.resize(kLookedAt);
  std::optional<Handle> best;
  for (const auto& [number, content] : children) {
    const Entry& entry = entries_.at(content);
    if (!entry.is_published || !is_alive(entry) || !pool_.can_be_found(entry.block.id)) continue;
    std::size_t equal = 0;
    while (equal < most && words_of(content, equal) == words_of(wanted, equal)) ++equal;
    if (static_cast<std::int64_t>(equal) <= match.part_tokens) continue;
    match.part_tokens = static_cast<std::int64_t>(equal);
    best = entry.block;
  }
  match.tokens += match.part_tokens;
  return best;
}

std::vector<Handle> NaivePrefix::blocks_of(const PrefixQuery& query,
                                           const PrefixMatch& match) const {
  std::vector<Handle> blocks;
  for (std::size_t b = 1; b <= static_cast<std::size_t>(match.blocks); ++b) {
    blocks.push_back(entries_.at(content_of(query.salt, query.extra_keys, query.tokens, b)).block);
  }
  return blocks;
}

/// What a sequence gets of a match: the part only when the pool has the block more that it takes.
std::vector<Handle> NaivePrefix::blocks_to_take(const PrefixQuery& query,
                                                PrefixMatch& match) const {
  PrefixMatch whole = match;
  whole.tokens -= std::exchange(whole.part_tokens, 0);
  std::vector<Handle> blocks = blocks_of(query, whole);
  if (match.part_tokens == 0) return blocks;
  PrefixMatch again = whole;
  const Handle part = *find_part(query, again);
  std::int64_t needed = 1 + tables_.blocks_for(std::ssize(query.tokens)) - match.blocks;
  for (const Handle& block : blocks) {
    needed += pool_.state(block.id) == BlockState::evictable ? 1 : 0;
  }
  if (pool_.state(part.id) == BlockState::evictable && needed > pool_.usable(Urgency::admission)) {
    match = whole;
    return blocks;
  }
  blocks.push_back(part);
  return blocks;
}

}  // namespace kvarena::model
