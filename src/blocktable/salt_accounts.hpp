#pragma once

/// @file
/// `SaltAccounts`: which registered blocks of a prefix cache belong to a salt with an account, in
/// the order in which its sequences gave them up, and which of them its floor keeps
/// (salt_limits.hpp). Every call is O(1) a block. It knows blocks, the manager and no contents.
///
/// Each account has two lists, oldest first: kept blocks, on which the account's holder has a
/// reference, and idle ones. A block that its floor no longer keeps goes to the end of the idle
/// ones.

#include "base/lazy_array.hpp"
#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/salt_limits.hpp"

#include <cstdint>
#include <limits>
#include <span>

namespace kvarena {

/// The accounts of some salts. One thread at a time. All memory is allocated at construction.
class SaltAccounts {
 public:
  static constexpr std::int32_t kNone = -1;  ///< no account
  /// In place of a block's number: no floor keeps it.
  static constexpr std::int64_t kNotKept = std::numeric_limits<std::int64_t>::max();

  /// 12 bytes a block, unless max_accounts is 0.
  SaltAccounts(BlockManager& manager, std::int32_t max_accounts);
  static std::int64_t bytes(std::int64_t num_blocks, std::int32_t max_accounts) noexcept;
  bool is_on() const noexcept { return max_accounts_ != 0; }

  /// Returns the account of a salt, or kNone. O(1).
  std::int32_t find(std::uint64_t salt) const noexcept;
  /// Sets the limits of a salt, which gets an account if it has none. Returns exhausted (capacity,
  /// holder).
  Status set_limits(std::uint64_t salt, const SaltLimits& limits);
  /// Ends an account without blocks and sequences. Returns not_found or failed_precondition.
  Status close(std::uint64_t salt);
  SaltFigures figures(std::int32_t account) const noexcept;
  /// Releases what the floors keep.
  void release_all() noexcept;

  void count_sequence(std::int32_t account, std::int64_t change) noexcept {
    if (account != kNone) accounts_[place(account)].sequences += change;
  }
  /// A block of the account has been registered.
  void enter(BlockId id, std::int32_t account) noexcept;
  /// The block is not registered any more. Its content is no longer published.
  void leave(BlockId id) noexcept;
  bool has(BlockId id, std::int32_t account) const noexcept {
    return account != kNone && members_[index(id)].account == number_of(account);
  }
  bool is_kept(BlockId id, std::int32_t account) const noexcept {
    return has(id, account) && members_[index(id)].list == kKept;
  }
  /// A sequence gives up block number `number` of its prefix, or kNotKept: then it need not be
  /// published. keep_floor ends the prefix. Returns whether the floor keeps it or need not: all
  /// that the pool has may be promised to others.
  bool give_up(BlockId id, Generation generation, std::int32_t account,
               std::int64_t number) noexcept;
  /// Lets the oldest blocks go that the floor keeps beyond its size.
  void keep_floor(std::int32_t account) noexcept;
  /// Whether another registered block would exceed the cap.
  bool is_full(std::int32_t account) const noexcept {
    return account != kNone &&
           accounts_[place(account)].registered >= accounts_[place(account)].limits.cap_blocks;
  }
  /// Blocks in use that take_oldest has made the newest of their lists.
  struct PassedOver {
    std::int64_t idle = 0;
    std::int64_t kept = 0;
  };
  /// Takes the oldest block out of its list, first of the idle ones, then of those that the floor
  /// keeps, without the floor. Blocks that somebody else uses stay what they are: they become the
  /// newest of their list, at most `most` of them. kNoBlock: there is none, or too many are in use.
  BlockId take_oldest(std::int32_t account, PassedOver& passed, std::int64_t most) noexcept;

  /// An append that lacks blocks wants so many for a sequence of the account. The first of an
  /// account's sequences stands for all.
  void want(std::int32_t account, std::int64_t blocks, SequenceId by) noexcept;
  /// Returns whether the floors of those who want blocks have `missing` blocks of the pool, and
  /// ends the wants: take_wanted is for these.
  bool can_yield(std::int64_t missing) noexcept;
  /// A block that a floor kept, and who wants it.
  struct Yielded {
    BlockId id = kNoBlock;
    SequenceId by{};
  };
  /// Takes the oldest block that comes back from the floor of one who wants blocks: it is
  /// evictable then. kNoBlock: there is none.
  Yielded take_wanted() noexcept;
  bool keeps_any() const noexcept { return kept_ != 0; }
  std::int64_t kept() const noexcept { return kept_; }

  /// Counts the evictable blocks of each account. Calls visit(salt, blocks) for each, and returns
  /// the evictable blocks without an account. O(num_blocks).
  template <class Visit>
  std::int64_t count_evictable(Visit visit) const noexcept;
  /// Proves lists, counts and references. O(num_blocks).
  Status check() const;

 private:
  friend struct PrefixProbe;  // tests plant faults with it

  enum : std::uint32_t { kInNoList, kIdle, kKept };
  /// Of a block. Links are block ids plus 1; 0 is none.
  struct Member {
    std::uint32_t older = 0;
    std::uint32_t newer = 0;
    std::uint32_t account : 30 = 0;  // plus 1; 0: none
    std::uint32_t list : 2 = kInNoList;
  };
  static_assert(sizeof(Member) == 12);
  struct List {
    std::uint32_t oldest = 0;
    std::uint32_t newest = 0;
    std::int64_t size = 0;
  };
  struct Account {
    std::uint64_t salt = 0;
    bool is_open = false;
    std::uint32_t next = 0;  // with the same place in the table, or free; plus 1
    HolderId holder{};       // kNoHolder: there was never a floor
    SaltLimits limits{};
    std::int64_t registered = 0;
    std::int64_t sequences = 0;
    List idle{};
    List kept{};
    std::uint64_t call = 0;  // the yield that `wanted` is for
    std::int64_t wanted = 0;
    SequenceId by{};                // who wants
    std::uint32_t last_in_use = 0;  // kept, and seen by take_wanted with all that are older
    mutable std::int64_t counted = 0;
  };

  static std::size_t index(BlockId id) noexcept { return static_cast<std::size_t>(id.value); }
  static std::size_t place(std::int32_t account) noexcept {
    return static_cast<std::size_t>(account);
  }
  /// An account as members name it.
  static std::uint32_t number_of(std::int32_t account) noexcept {
    return (static_cast<std::uint32_t>(account) + 1) & ((1U << 30U) - 1);
  }
  static std::uint32_t link(BlockId id) noexcept {
    return static_cast<std::uint32_t>(id.value) + 1;
  }
  static BlockId linked(std::uint32_t link) noexcept {
    return BlockId(static_cast<std::int32_t>(link) - 1);
  }
  std::uint32_t& head_of(std::uint64_t salt) noexcept;
  List& list_of(Account& account, const Member& member) noexcept {
    return member.list == kKept ? account.kept : account.idle;
  }
  void append(Account& account, BlockId id, std::uint32_t list) noexcept;
  void unlink(Account& account, BlockId id) noexcept;
  bool keep(Account& account, BlockId id, Generation generation) noexcept;
  bool comes_back(BlockId id) const noexcept;
  void let_go(Account& account, BlockId id) noexcept;
  Status check_list(const Account& account, std::uint32_t number, std::uint32_t kind,
                    const List& list) const;

  BlockManager* manager_;
  std::int32_t max_accounts_;
  LazyArray<Account> accounts_;
  LazyArray<std::uint32_t> heads_;  // by salt: the first account, plus 1
  LazyArray<Member> members_;       // by block
  std::uint32_t free_ = 0;          // closed accounts; plus 1
  std::uint32_t used_ = 0;          // accounts that were ever open
  std::int64_t kept_ = 0;           // of all
  std::uint64_t yields_ = 0;
};

template <class Visit>
std::int64_t SaltAccounts::count_evictable(Visit visit) const noexcept {
  std::int64_t others = 0;
  for (std::uint32_t a = 0; a < used_; ++a) accounts_[a].counted = 0;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (manager_->state(BlockId(static_cast<std::int32_t>(i))) != BlockState::evictable) continue;
    const std::uint32_t account = members_[i].account;
    if (account == 0) {
      ++others;
    } else {
      ++accounts_[account - 1].counted;
    }
  }
  for (std::uint32_t a = 0; a < used_; ++a) {
    if (accounts_[a].is_open) visit(accounts_[a].salt, accounts_[a].counted);
  }
  return others;
}

}  // namespace kvarena
