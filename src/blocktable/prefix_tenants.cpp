// Tenants. Blocks that an engine hands over by their ids: a sequence cannot begin with those of
// another tenant, or of other extra keys. And what a tenant's account keeps and gives up.

#include "blocktable/prefix_cache.hpp"

#include <algorithm>
#include <utility>

namespace kvarena {

std::uint64_t PrefixCache::salt_of(BlockId id) const noexcept {
  while (!index_.is_first(id)) id = index_.parent_of(id).block();
  return index_.block(id).origin;
}

BlockId PrefixCache::node_of(BlockId id, Generation generation, bool is_companion) const noexcept {
  if (id.value < 0 || id.value >= index_.num_blocks()) return kNoBlock;
  if (is_companion) return companions_->node_of(id, generation);
  const PrefixBlock& block = index_.block(id);
  return block.is_registered() && block.generation == generation ? id : kNoBlock;
}

/// Compares the extra keys of a registered block with those of a sequence that begin in its block
/// `number`, before the sequence's end.
Status PrefixCache::check_keys_of(BlockId id, std::int64_t number, std::int64_t length,
                                  std::span<const ExtraKey> keys) const noexcept {
  const std::int64_t begin = number * static_cast<std::int64_t>(block_size_);
  const std::int64_t end = std::min(length, begin + static_cast<std::int64_t>(block_size_));
  const auto first = std::ranges::lower_bound(keys, begin, {}, &ExtraKey::first_token);
  const auto last = std::ranges::lower_bound(first, keys.end(), end, {}, &ExtraKey::first_token);
  const std::span<const ExtraKey> its(first, last);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < index_.block(id).num_keys(); ++i) {
    if (begin + index_.key_of(id, i).first_token < end) ++count;
  }
  if (std::ssize(its) != count) {
    return invalid_option(Option::extra_keys, std::ssize(its), count, count);
  }
  for (std::size_t i = 0; i < its.size(); ++i) {
    const ExtraKey known = index_.key_of(id, i);
    if (its[i].key != known.key) {
      const auto expected = static_cast<std::int64_t>(known.key);
      return invalid_option(Option::extra_keys, static_cast<std::int64_t>(its[i].key), expected,
                            expected);
    }
    if (its[i].first_token - begin != known.first_token) {
      return invalid_option(Option::first_token, its[i].first_token, begin + known.first_token,
                            begin + known.first_token);
    }
  }
  return {};
}

/// The salt comes before the keys: they are found in one walk to the first block.
Status PrefixCache::check_tenant(BlockId node, std::int64_t number, BlockId agreed,
                                 std::int64_t length,
                                 const SequenceOptions& options) const noexcept {
  Status keys;
  for (BlockId id = node; id != agreed; id = index_.parent_of(id).block(), --number) {
    if (keys) keys = check_keys_of(id, number, length, options.extra_keys);
    if (!index_.is_first(id)) continue;
    const std::uint64_t salt = index_.block(id).origin;
    if (salt == options.salt) break;
    return invalid_option(Option::salt, static_cast<std::int64_t>(options.salt),
                          static_cast<std::int64_t>(salt), static_cast<std::int64_t>(salt));
  }
  return keys;
}

/// The registered block that a block belongs to, or kNoBlock.
BlockId PrefixCache::registered_for(BlockId id) const noexcept {
  if (index_.block(id).is_registered()) return is_alive(id) ? id : kNoBlock;
  if (companions_ == nullptr || !companions_->has_block(id)) return kNoBlock;
  return companions_->node_of(id, manager_->generation(id));
}

/// Counts the evictable blocks behind each first block of a prefix. Returns how many first blocks
/// have some: they are the beginning of `firsts`, by salt. While it counts, firsts[b] is the first
/// block of b's prefix, so that no way is gone twice.
std::size_t PrefixCache::count_by_first(std::span<BlockId> firsts,
                                        std::span<Generation> counts) const noexcept {
  const auto at = [](BlockId id) { return static_cast<std::size_t>(id.value); };
  const auto num_blocks = static_cast<std::int32_t>(index_.num_blocks());
  std::ranges::fill(firsts, kNoBlock);
  std::ranges::fill(counts, Generation(0));
  for (BlockId id(0); id.value < num_blocks; ++id.value) {
    if (manager_->state(id) != BlockState::evictable) continue;
    const BlockId node = registered_for(id);
    if (node == kNoBlock) continue;
    BlockId first = node;
    while (firsts[at(first)] == kNoBlock && !index_.is_first(first)) {
      first = index_.parent_of(first).block();
    }
    if (firsts[at(first)] != kNoBlock) first = firsts[at(first)];
    for (BlockId b = node; b != first && firsts[at(b)] == kNoBlock;
         b = index_.parent_of(b).block()) {
      firsts[at(b)] = first;
    }
    ++counts[at(first)].value;
  }
  std::size_t num = 0;
  for (BlockId id(0); id.value < num_blocks; ++id.value) {
    if (counts[at(id)].value != 0) firsts[num++] = id;
  }
  std::ranges::sort(firsts.first(num), {},
                    [this](BlockId id) { return std::pair(index_.block(id).origin, id.value); });
  return num;
}

void PrefixCache::count_evictable(
    std::span<BlockId> firsts, std::span<Generation> counts,
    const std::function<void(std::uint64_t, std::int64_t)>& visit) const noexcept {
  const std::size_t num = count_by_first(firsts, counts);
  for (std::size_t i = 0; i < num;) {
    const std::uint64_t salt = index_.block(firsts[i]).origin;
    std::int64_t blocks = 0;
    for (; i < num && index_.block(firsts[i]).origin == salt; ++i) {
      blocks += counts[static_cast<std::size_t>(firsts[i].value)].value;
    }
    visit(salt, blocks);
  }
}

/// The number of blocks in use that are looked at is bounded; the next block of the salt looks at
/// others.
void PrefixCache::keep_cap(std::int32_t account) noexcept {
  SaltAccounts::PassedOver passed;
  std::int64_t left = SaltLimits::kPassedOver;
  while (accounts_.is_full(account)) {
    const BlockId oldest = accounts_.take_oldest(account, passed, left);
    if (oldest == kNoBlock) return;
    remove(oldest, PrefixRemoval::over_cap);
    left -= passed.idle + passed.kept;  // blocks behind it may have gone with it
    passed = {};
  }
}

/// Blocks behind one that is taken go with it, and may be enough.
void PrefixCache::use_floors(std::int64_t missing) noexcept {
  while (missing > 0) {
    const std::int64_t available = manager_->stats().available();
    const std::uint64_t before = stats_.removals;
    const SaltAccounts::Yielded yielded = accounts_.take_wanted();
    if (yielded.id == kNoBlock) return;
    remove(yielded.id, PrefixRemoval::evicted);
    note_taker({yielded.by, 1}, before);
    missing -= manager_->stats().available() - available;
  }
}

bool PrefixCache::has_registered(const Owner& owner, std::int32_t number) const noexcept {
  if (number >= owner.table.num_entries) return false;
  const PrefixBlock& block = index_.block(owner.table.id_at(std::as_const(owner.pages), number));
  return block.is_registered() &&
         block.generation == owner.table.generation_at(owner.pages, number);
}

bool PrefixCache::gives_up_rest(const Owner& owner, std::int64_t length) const noexcept {
  const auto keep = static_cast<std::int32_t>(length / static_cast<std::int64_t>(block_size_));
  return account_of(owner.slot) != SaltAccounts::kNone && length < owner.sequence.length &&
         !is_whole(owner.slot) && has_registered(owner, keep);
}

/// When the end of the chain has gone, the sequence still has the blocks in front of that. Its last
/// own one that is registered names them, if it is as far behind the beginning as in the table:
/// blocks that an engine handed over may be elsewhere.
PrefixCache::Prefix PrefixCache::registered_prefix(const Owner& owner) const noexcept {
  const PrefixChain& c = chains_[owner.slot];
  if (is_whole(owner.slot)) return {c.last, c.blocks};
  std::int32_t number = owner.table.num_entries;
  while (number > 0 && !has_registered(owner, number - 1)) --number;
  if (number == 0) return {};
  const BlockId last = owner.table.id_at(std::as_const(owner.pages), number - 1);
  std::int32_t blocks = 1;
  for (BlockId id = last; !index_.is_first(id) && blocks <= number; ++blocks) {
    id = index_.parent_of(id).block();
  }
  return blocks == number ? Prefix{index_.link_to(last), number} : Prefix{};
}

/// A floor keeps a block only with those in front of it. When one of them cannot be kept after all,
/// the blocks are given up once more, so that those behind it are let go.
void PrefixCache::give_up(const Owner& owner) noexcept {
  const std::int32_t account = account_of(owner.slot);
  if (account == SaltAccounts::kNone) return;
  const Prefix c = registered_prefix(owner);
  const auto is_found = [&](BlockId id) {
    const PrefixBlock& block = index_.block(id);
    return accounts_.has(id, account) && block.is_published() &&
           manager_->count_published({&id, 1}, {&block.generation, 1}) == 1;
  };
  std::int32_t keepable = c.blocks;  // so many from the first one
  PrefixLink at = c.last;
  for (std::int32_t i = c.blocks - 1; i >= 0; --i) {
    const BlockId id = at.block();
    at = index_.parent_of(id);
    if (!(accounts_.is_kept(id, account) && is_alive(id)) && !is_found(id)) keepable = i;
  }
  for (std::int32_t kept = -1; kept != keepable;) {
    kept = keepable;
    at = c.last;
    for (std::int32_t i = c.blocks - 1; i >= 0; --i) {
      const BlockId id = at.block();
      at = index_.parent_of(id);
      const Generation generation = index_.block(id).generation;
      if (i < kept) {
        if (!accounts_.give_up(id, generation, account, i)) keepable = i;
      } else if (accounts_.is_kept(id, account) || is_found(id)) {
        accounts_.give_up(id, generation, account, SaltAccounts::kNotKept);
      }
    }
  }
  accounts_.keep_floor(account);
}

}  // namespace kvarena
