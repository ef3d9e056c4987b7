// The accounts of salts as BlockTables offers and uses them.

#include "base/range_checks.hpp"
#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>

namespace kvarena {
namespace {

/// The tables have no prefix cache, or none with accounts.
Status there_is_none(Option option) noexcept {
  Status status = failed_precondition(Resource::none);
  status.option = option;
  return status;
}

/// Whether a comes before b in an explanation.
bool is_larger(const SaltShare& a, const SaltShare& b) noexcept {
  return a.blocks != b.blocks ? a.blocks > b.blocks : a.salt < b.salt;
}

}  // namespace

Status BlockTables::set_salt_limits(std::uint64_t salt, const SaltLimits& limits) {
  Impl& t = *impl_;
  if (t.prefix == nullptr) return there_is_none(Option::prefix_cache);
  if (!t.prefix->accounts().is_on()) return there_is_none(Option::max_accounts);
  if (Status s =
          check_option(Option::floor_blocks, limits.floor_blocks, 0, t.manager->num_blocks());
      !s) {
    return s;
  }
  if (Status s = check_option(Option::cap_blocks, limits.cap_blocks,
                              std::max<std::int64_t>(1, limits.floor_blocks), SaltLimits::kNoCap);
      !s) {
    return s;
  }
  if (t.groups && limits.floor_blocks != 0) {
    return unsupported_option(Option::floor_blocks,
                              static_cast<std::uint64_t>(limits.floor_blocks));
  }
  return t.prefix->accounts().set_limits(salt, limits);
}

Status BlockTables::close_salt_account(std::uint64_t salt) {
  if (impl_->prefix == nullptr) return there_is_none(Option::prefix_cache);
  return impl_->prefix->accounts().close(salt);
}

Result<SaltFigures> BlockTables::salt_figures(std::uint64_t salt) const {
  if (impl_->prefix == nullptr) return there_is_none(Option::prefix_cache);
  const SaltAccounts& accounts = impl_->prefix->accounts();
  const std::int32_t account = accounts.find(salt);
  if (account == SaltAccounts::kNone) return not_found(Resource::holder, salt);
  return accounts.figures(account);
}

/// Returns how many blocks the growths lack, or -1 when floors do not have so many for sequences of
/// their own salts.
std::int64_t BlockTables::Impl::missing_of_floors(std::span<const Growth> its,
                                                  Urgency urgency) const noexcept {
  std::int64_t beyond_promises = 0;
  Urgency of_all = Urgency::growth;
  for (std::size_t g = 0; g < its.size(); ++g) {
    const Result<HolderReport> holder = manager->holder(holder_demands[g].holder);
    const std::int64_t promised = holder ? holder->reserved : 0;
    const std::int64_t beyond = std::int64_t{holder_demands[g].count} - promised;
    if (beyond <= 0) continue;
    beyond_promises += beyond;
    of_all = std::max(of_all, its[g].urgency.value_or(urgency));
    const auto slot = static_cast<std::uint32_t>(SequenceTable::slot_of(its[g].id));
    prefix->accounts().want(prefix->account_of(slot), beyond, its[g].id);
  }
  const BlockStats stats = manager->stats();
  const std::int64_t kept = of_all == Urgency::admission ? stats.watermark : 0;
  const std::int64_t left = stats.available() - stats.reserved - kept;
  const std::int64_t missing = std::max<std::int64_t>(0, beyond_promises - left);
  return prefix->accounts().can_yield(missing) ? missing : -1;
}

/// The largest shares, most first, without a list of all. The scratch memory of append is free:
/// what it holds ends with the call that wrote it.
void BlockTables::Impl::count_salts(Explanation& e, bool scans) noexcept {
  e.evictable_of_others = e.stats.evictable;
  if (prefix == nullptr) return;
  const auto insert = [&e](std::uint64_t salt, std::int64_t blocks) {
    SaltShare share{salt, blocks};
    for (std::size_t i = 0; i < e.num_salts; ++i) {
      if (is_larger(share, e.evictable_salts[i])) std::swap(share, e.evictable_salts[i]);
    }
    if (share.blocks != 0 && e.num_salts < e.evictable_salts.size()) {
      e.evictable_salts[e.num_salts++] = share;
    }
  };
  if (prefix->accounts().is_on()) {
    static_cast<void>(prefix->accounts().count_evictable(insert));
  } else if (scans) {
    prefix->count_evictable(std::span(new_ids.data(), new_ids.size()),
                            std::span(new_generations.data(), new_generations.size()), insert);
  }
  for (std::size_t i = 0; i < e.num_salts; ++i) {
    e.evictable_of_others -= e.evictable_salts[i].blocks;
  }
}

}  // namespace kvarena
