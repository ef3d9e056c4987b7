// The accounts of salts in the naive model of the prefix cache.

#include "model/naive_prefix.hpp"

#include <algorithm>
#include <limits>

namespace kvarena::model {
namespace {

constexpr std::size_t kNotKept = std::numeric_limits<std::int64_t>::max();

bool contains(const std::vector<NaivePrefix::Content>& list, const NaivePrefix::Content& content) {
  return std::find(list.begin(), list.end(), content) != list.end();
}

}  // namespace

NaivePrefix::Account* NaivePrefix::account_of(const Sequence& sequence) {
  return sequence.has_account ? &accounts_.at(sequence.salt) : nullptr;
}

std::int64_t NaivePrefix::registered_of(std::uint64_t salt) const {
  return std::count_if(entries_.begin(), entries_.end(), [salt](const auto& pair) {
    return pair.second.has_account && pair.first.front() == static_cast<std::int64_t>(salt);
  });
}

SaltFigures NaivePrefix::figures(std::uint64_t salt) const {
  const Account& account = accounts_.at(salt);
  return {registered_of(salt), std::ssize(account.kept), account.sequences, account.limits};
}

void NaivePrefix::set_limits(std::uint64_t salt, const SaltLimits& limits, HolderId holder) {
  Account& account = accounts_[salt];
  account.limits = limits;
  account.holder = holder;
  keep_floor(account);
}

void NaivePrefix::keep_floor(Account& account) {
  while (std::ssize(account.kept) > account.limits.floor_blocks) {
    let_go(account, Content(account.kept.front()));
  }
}

/// A block that the floor kept becomes the newest of the idle ones.
void NaivePrefix::let_go(Account& account, const Content& content) {
  std::erase(account.kept, content);
  account.idle.push_back(content);
  const Handle block = entries_.at(content).block;
  static_cast<void>(pool_.release(account.holder, std::span(&block, 1)));
}

void NaivePrefix::leave(const Content& content, const Entry& entry) {
  if (!entry.has_account) return;
  Account& account = accounts_.at(static_cast<std::uint64_t>(content.front()));
  if (contains(account.kept, content)) let_go(account, content);
  std::erase(account.idle, content);
}

bool NaivePrefix::has_registered(SequenceId id, std::size_t number) const {
  const std::vector<Handle>& table = tables_.sequences().at(id).blocks;
  if (number >= table.size()) return false;
  const Content* const content = of_block(table[number].id);
  return content != nullptr && entries_.at(*content).block == table[number];
}

/// The contents of the leading blocks that are registered. A chain whose end has gone has those up
/// to the last own block, unless that is elsewhere in its prefix.
std::vector<NaivePrefix::Content> NaivePrefix::registered_prefix(SequenceId id) const {
  const Sequence& s = sequences_.at(id);
  std::vector<Content> prefix;
  if (is_whole(s)) {
    for (std::size_t i = 0; i < s.chain.size(); ++i) prefix.push_back(content_of(s, i + 1));
    return prefix;
  }
  const std::vector<Handle>& table = tables_.sequences().at(id).blocks;
  std::size_t blocks = table.size();
  while (blocks > 0 && !has_registered(id, blocks - 1)) --blocks;
  const std::size_t step = block_size_ + words_of_keys();
  if (blocks == 0) return prefix;
  const Content& last = *of_block(table[blocks - 1].id);
  if (last.size() != 1 + blocks * step) return prefix;
  for (std::size_t i = 0; i < blocks; ++i) {
    prefix.emplace_back(last.begin(),
                        last.begin() + static_cast<std::ptrdiff_t>(1 + (i + 1) * step));
  }
  return prefix;
}

/// From the last block of its prefix to the first.
void NaivePrefix::give_up(SequenceId id) {
  Account* account = account_of(sequences_.at(id));
  if (account == nullptr) return;
  const std::vector<Content> prefix = registered_prefix(id);
  const auto is_kept = [&](std::size_t i) { return contains(account->kept, prefix[i]); };
  const auto is_found = [&](std::size_t i) {
    const Entry& entry = entries_.at(prefix[i]);
    return entry.has_account && entry.is_published && is_alive(entry) &&
           pool_.can_be_found(entry.block.id);
  };
  const auto can_be_kept = [&](std::size_t i) {
    return is_found(i) || (is_kept(i) && is_alive(entries_.at(prefix[i])));
  };
  std::size_t keepable = 0;  // so many from the first one: a block is kept with those in front
  while (keepable < prefix.size() && can_be_kept(keepable)) ++keepable;
  std::size_t kept = 0;
  do {
    kept = keepable;
    for (std::size_t i = prefix.size(); i-- > 0;) {
      if (i < kept) {
        if (!give_up(*account, prefix[i], i)) keepable = i;
      } else if (is_kept(i) || is_found(i)) {
        give_up(*account, prefix[i], kNotKept);
      }
    }
  } while (keepable != kept);
  keep_floor(*account);
}

/// Returns false if it should be kept and cannot: what is left is promised to others.
bool NaivePrefix::give_up(Account& account, const Content& content, std::size_t number) {
  const bool was_kept = contains(account.kept, content);
  const bool is_wanted = static_cast<std::int64_t>(number) < account.limits.floor_blocks;
  if (was_kept && !is_wanted) {
    let_go(account, content);
    return true;
  }
  std::erase(account.kept, content);
  std::erase(account.idle, content);
  const Handle block = entries_.at(content).block;
  const bool is_kept =
      was_kept || (is_wanted && pool_.retain(account.holder, std::span(&block, 1)));
  (is_kept ? account.kept : account.idle).push_back(content);
  return is_kept || !is_wanted;
}

void NaivePrefix::keep_cap(const Sequence& sequence) {
  Account* account = account_of(sequence);
  if (account == nullptr) return;
  std::ptrdiff_t idle = 0;  // passed over
  std::ptrdiff_t kept = 0;
  for (int held = 0; held < SaltLimits::kPassedOver &&
                     registered_of(sequence.salt) >= account->limits.cap_blocks;) {
    const bool is_kept = std::ssize(account->idle) <= idle;
    if (is_kept && std::ssize(account->kept) <= kept) return;
    const Content oldest = is_kept ? account->kept.front() : account->idle.front();
    const BlockId id = entries_.at(oldest).block.id;
    // Of what the floor keeps, only what nobody else has: its reference, and that it is published.
    if (is_kept ? pool_.claims(id) != 2 : pool_.state(id) != BlockState::evictable) {
      auto& list = is_kept ? account->kept : account->idle;
      std::erase(list, oldest);
      list.push_back(oldest);
      ++(is_kept ? kept : idle);
      ++held;
      continue;
    }
    if (is_kept) let_go(*account, oldest);
    std::erase(account->idle, oldest);
    remove(oldest, PrefixRemoval::over_cap);
    idle = kept = 0;
  }
}

/// First it counts what would come back. Then floors lose their oldest until there is enough: what
/// lies behind a block goes with it.
void NaivePrefix::yield(std::span<const AppendDemand> demands, std::span<const Want> wants) {
  std::int64_t all = 0;
  std::map<std::uint64_t, std::int64_t> wanted;  // by salt
  std::map<std::uint64_t, SequenceId> first;     // who wants, by salt
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const Sequence& s = sequences_.at(demands[i].sequence);
    all += wants[i].count;
    if (!s.has_account || wants[i].count == 0) continue;
    wanted[s.salt] += wants[i].count;
    first.try_emplace(s.salt, demands[i].sequence);
  }
  const std::int64_t missing = all - pool_.left_for(Urgency::growth);
  std::int64_t yielded = 0;
  // Accounts come in the order in which they were opened: the driver opens them by salt.
  for (const auto& [salt, most] : wanted) {
    std::int64_t left = std::min(most, missing - yielded);
    for (const Content& content : accounts_.at(salt).kept) {
      if (left <= 0) break;
      if (!comes_back(content)) continue;
      ++yielded;
      --left;
    }
  }
  if (missing <= 0 || yielded < missing) return;
  std::int64_t left = missing;
  for (const auto& [salt, most] : wanted) {
    Account& account = accounts_.at(salt);
    std::int64_t taken = 0;
    for (const Content& content : std::vector<Content>(account.kept.begin(), account.kept.end())) {
      if (left <= 0 || taken == most) break;
      if (!contains(account.kept, content) || !comes_back(content)) continue;
      const std::int64_t before = pool_.left_for(Urgency::growth);
      let_go(account, content);
      remove_for(first.at(salt), content);
      left -= pool_.left_for(Urgency::growth) - before;
      ++taken;
    }
  }
}

/// The floor alone has it, and it stays in service.
bool NaivePrefix::comes_back(const Content& content) const {
  const BlockId id = entries_.at(content).block.id;
  return pool_.claims(id) == 2 && pool_.content(id) == BlockContent::published &&
         pool_.can_be_found(id);
}

}  // namespace kvarena::model
