#include "blocktable/salt_accounts.hpp"

#include <algorithm>
#include <bit>

namespace kvarena {
namespace {

std::size_t places(std::int32_t max_accounts) noexcept {
  return max_accounts == 0 ? 0 : std::bit_ceil(static_cast<std::size_t>(max_accounts));
}

/// The claims on a block that nobody but a floor holds: its reference, and that it is published.
constexpr std::uint32_t kClaimsOfFloorAlone = 2;

/// Spreads salts that may be consecutive numbers (the finalizer of splitmix64).
constexpr std::uint64_t spread(std::uint64_t salt) noexcept {
  salt = (salt ^ salt >> 30) * 0xbf58476d1ce4e5b9U;
  salt = (salt ^ salt >> 27) * 0x94d049bb133111ebU;
  return salt ^ salt >> 31;
}

Status violated(BlockId block, std::int64_t expected, std::int64_t found) noexcept {
  return {StatusCode::invariant_violated,
          Resource::block,
          Option::none,
          static_cast<std::int32_t>(Invariant::prefix_counts),
          static_cast<std::uint64_t>(block.value),
          static_cast<std::uint64_t>(expected),
          static_cast<std::uint64_t>(found)};
}

}  // namespace

SaltAccounts::SaltAccounts(BlockManager& manager, std::int32_t max_accounts)
    : manager_(&manager),
      max_accounts_(max_accounts),
      accounts_(static_cast<std::size_t>(max_accounts)),
      heads_(places(max_accounts)),
      members_(max_accounts == 0 ? 0 : static_cast<std::size_t>(manager.num_blocks())) {}

std::int64_t SaltAccounts::bytes(std::int64_t num_blocks, std::int32_t max_accounts) noexcept {
  if (max_accounts == 0) return 0;
  return max_accounts * static_cast<std::int64_t>(sizeof(Account)) +
         static_cast<std::int64_t>(places(max_accounts) * sizeof(std::uint32_t)) +
         num_blocks * static_cast<std::int64_t>(sizeof(Member));
}

std::uint32_t& SaltAccounts::head_of(std::uint64_t salt) noexcept {
  return heads_[spread(salt) & (heads_.size() - 1)];
}

std::int32_t SaltAccounts::find(std::uint64_t salt) const noexcept {
  if (!is_on()) return kNone;
  std::uint32_t at = heads_[spread(salt) & (heads_.size() - 1)];
  while (at != 0 && accounts_[at - 1].salt != salt) at = accounts_[at - 1].next;
  return static_cast<std::int32_t>(at) - 1;
}

/// A lower floor lets blocks go, the oldest first. A higher one keeps what is given up from now on.
Status SaltAccounts::set_limits(std::uint64_t salt, const SaltLimits& limits) {
  std::int32_t found = find(salt);
  if (found == kNone && free_ == 0 && used_ == accounts_.size()) {
    return exhausted(Resource::capacity, accounts_.size() + 1, accounts_.size(), salt,
                     Option::max_accounts);
  }
  HolderId holder = found == kNone ? kNoHolder : accounts_[place(found)].holder;
  if (limits.floor_blocks > 0 && holder == kNoHolder) {
    const Result<HolderId> made =
        manager_->register_holder({.number = salt, .owner = salt, .purpose = "salt floor"});
    if (!made) return made.status();
    holder = *made;
  }
  if (found == kNone) {
    const std::uint32_t at = free_ != 0 ? free_ : ++used_;
    Account& account = accounts_[at - 1];
    if (free_ != 0) free_ = account.next;
    std::uint32_t& head = head_of(salt);
    account = {.salt = salt, .is_open = true, .next = head};
    head = at;
    found = static_cast<std::int32_t>(at) - 1;
  }
  Account& account = accounts_[place(found)];
  account.holder = holder;
  account.limits = limits;
  keep_floor(found);
  return {};
}

Status SaltAccounts::close(std::uint64_t salt) {
  const std::int32_t found = find(salt);
  if (found == kNone) return not_found(Resource::holder, salt);
  Account& account = accounts_[place(found)];
  if (account.registered != 0 || account.sequences != 0) {
    Status status = failed_precondition(Resource::sequence, salt);
    status.option = Option::salt;
    return status;
  }
  if (account.holder != kNoHolder) static_cast<void>(manager_->unregister_holder(account.holder));
  std::uint32_t* at = &head_of(salt);
  while (*at != static_cast<std::uint32_t>(found) + 1) at = &accounts_[*at - 1].next;
  *at = account.next;
  account = {.next = free_};
  free_ = static_cast<std::uint32_t>(found) + 1;
  return {};
}

SaltFigures SaltAccounts::figures(std::int32_t number) const noexcept {
  const Account& account = accounts_[place(number)];
  return {account.registered, account.kept.size, account.sequences, account.limits};
}

void SaltAccounts::release_all() noexcept {
  for (std::uint32_t a = 0; a < used_; ++a) {
    Account& account = accounts_[a];
    while (account.kept.size != 0) let_go(account, linked(account.kept.oldest));
    if (account.holder != kNoHolder) static_cast<void>(manager_->unregister_holder(account.holder));
    account.holder = kNoHolder;
  }
}

void SaltAccounts::enter(BlockId id, std::int32_t account) noexcept {
  if (account == kNone) return;
  members_[index(id)].account = number_of(account) & ((1U << 30U) - 1);
  ++accounts_[place(account)].registered;
}

void SaltAccounts::leave(BlockId id) noexcept {
  if (!is_on() || members_[index(id)].account == 0) return;
  Member& member = members_[index(id)];
  Account& account = accounts_[member.account - 1];
  if (member.list == kKept) let_go(account, id);
  if (member.list != kInNoList) unlink(account, id);
  --account.registered;
  member = {};
}

void SaltAccounts::append(Account& account, BlockId id, std::uint32_t kind) noexcept {
  Member& member = members_[index(id)];
  member.list = kind & 3U;
  List& list = list_of(account, member);
  member.older = list.newest;
  member.newer = 0;
  (list.newest != 0 ? members_[list.newest - 1].newer : list.oldest) = link(id);
  list.newest = link(id);
  ++list.size;
}

void SaltAccounts::unlink(Account& account, BlockId id) noexcept {
  Member& member = members_[index(id)];
  List& list = list_of(account, member);
  (member.older != 0 ? members_[member.older - 1].newer : list.oldest) = member.newer;
  (member.newer != 0 ? members_[member.newer - 1].older : list.newest) = member.older;
  --list.size;
  member.list = kInNoList;
}

/// Makes a block that is in no list the newest of those that the floor keeps.
bool SaltAccounts::keep(Account& account, BlockId id, Generation generation) noexcept {
  if (!manager_->retain(account.holder, std::span(&id, 1), std::span(&generation, 1))) return false;
  append(account, id, kKept);
  ++kept_;
  return true;
}

/// Makes a block that the floor keeps the newest idle one.
void SaltAccounts::let_go(Account& account, BlockId id) noexcept {
  unlink(account, id);
  append(account, id, kIdle);
  --kept_;
  const Generation generation = manager_->generation(id);
  static_cast<void>(
      manager_->release(account.holder, std::span(&id, 1), std::span(&generation, 1)));
}

/// The first blocks of a prefix are kept, as many as the floor has. Others become idle.
bool SaltAccounts::give_up(BlockId id, Generation generation, std::int32_t number,
                           std::int64_t place_in_prefix) noexcept {
  Account& account = accounts_[place(number)];
  const Member& member = members_[index(id)];
  const bool was_kept = member.list == kKept;
  const bool is_wanted = place_in_prefix < account.limits.floor_blocks;
  if (was_kept && !is_wanted) {
    let_go(account, id);
    return true;
  }
  if (member.list != kInNoList) unlink(account, id);
  if (was_kept) {
    append(account, id, kKept);
    return true;
  }
  if (is_wanted && keep(account, id, generation)) return true;
  append(account, id, kIdle);
  return !is_wanted;
}

void SaltAccounts::keep_floor(std::int32_t number) noexcept {
  Account& account = accounts_[place(number)];
  while (account.kept.size > account.limits.floor_blocks) {
    let_go(account, linked(account.kept.oldest));
  }
}

BlockId SaltAccounts::take_oldest(std::int32_t number, PassedOver& passed,
                                  std::int64_t most) noexcept {
  Account& account = accounts_[place(number)];
  while (passed.idle + passed.kept < most) {
    const bool is_kept = account.idle.size <= passed.idle;
    if (is_kept && account.kept.size <= passed.kept) return kNoBlock;
    const BlockId oldest = linked(is_kept ? account.kept.oldest : account.idle.oldest);
    const bool is_free = is_kept ? manager_->claims(oldest) == kClaimsOfFloorAlone
                                 : manager_->state(oldest) == BlockState::evictable;
    if (is_free && is_kept) let_go(account, oldest);
    unlink(account, oldest);
    if (is_free) return oldest;
    append(account, oldest, is_kept ? kKept : kIdle);
    ++(is_kept ? passed.kept : passed.idle);
  }
  return kNoBlock;
}

void SaltAccounts::want(std::int32_t number, std::int64_t blocks, SequenceId by) noexcept {
  if (number == kNone) return;
  Account& account = accounts_[place(number)];
  if (account.call != yields_ + 1) {
    account.wanted = 0;
    account.by = by;
    account.last_in_use = 0;
  }
  account.call = yields_ + 1;
  account.wanted += blocks;
}

/// Whether nobody but the floor holds a block that it keeps, and it stays in service.
bool SaltAccounts::comes_back(BlockId id) const noexcept {
  const Generation generation = manager_->generation(id);
  return manager_->claims(id) == kClaimsOfFloorAlone &&
         manager_->count_published({&id, 1}, {&generation, 1}) == 1;
}

bool SaltAccounts::can_yield(std::int64_t missing) noexcept {
  ++yields_;
  for (std::uint32_t a = 0; a < used_ && missing > 0; ++a) {
    const Account& account = accounts_[a];
    if (!account.is_open || account.call != yields_) continue;
    std::int64_t wanted = std::min(account.wanted, missing);
    for (std::uint32_t at = account.kept.oldest; at != 0 && wanted > 0;
         at = members_[at - 1].newer) {
      if (!comes_back(linked(at))) continue;
      --wanted;
      --missing;
    }
  }
  return missing <= 0;
}

/// Goes on behind the blocks that the last call has seen in use.
SaltAccounts::Yielded SaltAccounts::take_wanted() noexcept {
  for (std::uint32_t a = 0; a < used_; ++a) {
    Account& account = accounts_[a];
    if (!account.is_open || account.call != yields_ || account.wanted == 0) continue;
    // What was in use can have left with a block in front of it.
    const bool goes_on = account.last_in_use != 0 &&
                         members_[account.last_in_use - 1].list == kKept &&
                         members_[account.last_in_use - 1].account == a + 1;
    std::uint32_t at = goes_on ? members_[account.last_in_use - 1].newer : account.kept.oldest;
    for (; at != 0 && !comes_back(linked(at)); at = members_[at - 1].newer)
      account.last_in_use = at;
    if (at == 0) continue;
    --account.wanted;
    let_go(account, linked(at));
    return {linked(at), account.by};
  }
  return {};
}

Status SaltAccounts::check_list(const Account& account, std::uint32_t number, std::uint32_t kind,
                                const List& list) const {
  std::uint32_t older = 0;
  std::int64_t count = 0;
  for (std::uint32_t at = list.oldest; at != 0; at = members_[at - 1].newer) {
    const Member& member = members_[at - 1];
    if (member.list != kind || member.account != number || member.older != older ||
        ++count > list.size) {
      return violated(linked(at), list.size, count);
    }
    older = at;
  }
  if (older != list.newest || count != list.size || list.size > account.registered) {
    return violated(kNoBlock, list.size, count);
  }
  return {};
}

Status SaltAccounts::check() const {
  std::int64_t kept = 0;
  for (std::uint32_t a = 0; a < used_; ++a) accounts_[a].counted = 0;
  for (const Member& member : members_) {
    if (member.account != 0) ++accounts_[member.account - 1].counted;
  }
  for (std::uint32_t a = 0; a < used_; ++a) {
    const Account& account = accounts_[a];
    if (!account.is_open) continue;
    if (Status s = check_list(account, a + 1, kIdle, account.idle); !s) return s;
    if (Status s = check_list(account, a + 1, kKept, account.kept); !s) return s;
    if (account.counted != account.registered) {
      return violated(kNoBlock, account.registered, account.counted);
    }
    kept += account.kept.size;
    if (account.kept.size > account.limits.floor_blocks) {
      return violated(kNoBlock, account.limits.floor_blocks, account.kept.size);
    }
    if (account.holder == kNoHolder) continue;
    const Result<HolderReport> holder = manager_->holder(account.holder);
    const std::int64_t references = holder ? holder->references : -1;
    if (references != account.kept.size) return violated(kNoBlock, account.kept.size, references);
  }
  return kept == kept_ ? Status{} : violated(kNoBlock, kept_, kept);
}

}  // namespace kvarena
