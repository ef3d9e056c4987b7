// What holds for all blocks of the cache: its making, how a block comes into it and the ways by
// which it leaves, figures.

#include "blocktable/prefix_cache.hpp"

#include "base/random_key.hpp"
#include "base/range_checks.hpp"
#include "kvarena/base/layout.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMostEntries = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kBlocksPerEntry = 16;
constexpr std::int64_t kFewestEntries = 64;
constexpr std::int64_t kBlocksPerNote = 256;
constexpr std::int64_t kNotesOfFew = 16;  // of pools with few blocks
constexpr std::int64_t kMostBirths = 1024;
constexpr int kBirthShift = 4;

std::int64_t history_entries(const PrefixOptions& options, std::int64_t num_blocks) noexcept {
  if (options.history_entries != 0) return options.history_entries;
  return std::max(kFewestEntries, num_blocks / kBlocksPerEntry);
}

/// A note is of a whole growth, so fewer are needed.
std::int64_t eviction_notes(const PrefixOptions& options, std::int64_t num_blocks) noexcept {
  if (options.history_entries != 0) return options.history_entries;
  return num_blocks <= kMostBirths ? kNotesOfFew : num_blocks / kBlocksPerNote;
}

constexpr std::array<std::string_view, kNumPrefixStops> kStopNames = {
    "capped",     "less_than_a_block", "never_seen",        "evicted",
    "other_salt", "other_extra_key",   "not_yet_published", "other_group"};
constexpr std::array<std::string_view, kNumPrefixRemovals> kRemovalNames = {
    "evicted", "parent_removed", "forgotten", "aborted", "lost", "over_cap"};

/// Births of all blocks would cost 4 bytes a block. Few blocks have few births: all are noted.
int birth_shift(std::int64_t num_blocks) noexcept {
  return num_blocks <= kMostBirths ? 0 : kBirthShift;
}
std::int64_t num_births(std::int64_t num_blocks) noexcept {
  return ((num_blocks - 1) >> birth_shift(num_blocks)) + 1;
}

/// Tokens of a registered block.
std::int64_t block_size_of(const BlockTablesOptions& options) noexcept {
  if (options.groups.empty()) return options.block_size_tokens;
  return options.groups[PrefixCache::registered_group(options.groups)].block_size_tokens;
}

/// The registered blocks that the pool has room for. With groups a block of tokens takes a block of
/// each group whose tables grow, and its part of a state for each checkpoint.
std::int64_t room_of(const BlockManager& manager, const BlockTablesOptions& options) noexcept {
  const std::span<const BlockGroup> pages = manager.groups();
  if (options.groups.empty() || pages.size() != options.groups.size()) return manager.num_blocks();
  double pages_of_a_block = 0;
  for (std::size_t g = 0; g < pages.size(); ++g) {
    const TableGroup& group = options.groups[g];
    const auto per_page = static_cast<double>(pages[g].blocks_per_page);
    if (group.kind != PagedKind::state) {
      pages_of_a_block += 1 / per_page;
    } else if (options.checkpoint_every_tokens > 0) {
      const double states = static_cast<double>(block_size_of(options)) /
                            static_cast<double>(options.checkpoint_every_tokens);
      pages_of_a_block += group.num_parts * states / per_page;
    }
  }
  const auto room = static_cast<double>(manager.num_pages()) / pages_of_a_block;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(room));
}

GhostIndexOptions ghost_options(const PrefixOptions& options, std::int64_t num_blocks) noexcept {
  return {.num_blocks = num_blocks, .max_sampled_blocks = options.ghost_blocks};
}

std::unique_ptr<GhostIndex> make_ghosts(const PrefixOptions& options, std::int64_t num_blocks) {
  if (options.ghost_blocks == 0) return nullptr;
  Result<GhostIndex> made = GhostIndex::create(ghost_options(options, num_blocks));
  if (!made) throw std::bad_alloc();  // prepare has checked the rest
  return std::make_unique<GhostIndex>(std::move(*made));
}

std::unique_ptr<PrefixCompanions> make_companions(BlockManager& manager,
                                                  std::span<const TableGroup> groups) {
  if (groups.empty()) return nullptr;
  std::vector<bool> is_state;
  for (const TableGroup& group : groups) is_state.push_back(group.kind == PagedKind::state);
  return std::make_unique<PrefixCompanions>(manager, std::move(is_state));
}

}  // namespace

std::string_view name_of(PrefixStop stop) noexcept {
  const auto number = static_cast<std::size_t>(stop);
  return number < kStopNames.size() ? kStopNames[number] : "unknown_stop";
}

std::string_view name_of(PrefixRemoval removal) noexcept {
  const auto number = static_cast<std::size_t>(removal);
  return number < kRemovalNames.size() ? kRemovalNames[number] : "unknown_removal";
}

std::size_t PrefixCache::registered_group(std::span<const TableGroup> groups) noexcept {
  const auto full =
      std::ranges::find(groups, PagedKind::full, [](const TableGroup& g) { return g.kind; });
  return full == groups.end() ? 0 : static_cast<std::size_t>(full - groups.begin());
}

/// What a cross group keeps depends on the encoder, not on the tokens before.
Status PrefixCache::check_groups(const PrefixOptions& options,
                                 std::span<const TableGroup> groups) noexcept {
  if (groups.empty()) return {};
  const TableGroup& registered = groups[registered_group(groups)];
  const auto kind_of = [](const TableGroup& g) { return static_cast<std::uint64_t>(g.kind); };
  if (registered.kind != PagedKind::full) {
    return unsupported_option(Option::kind, kind_of(registered));
  }
  for (const TableGroup& group : groups) {
    if (group.kind == PagedKind::cross) return unsupported_option(Option::kind, kind_of(group));
    if (group.kind == PagedKind::state) continue;
    if (group.block_size_tokens != registered.block_size_tokens) {
      return unsupported_option(Option::block_size_tokens,
                                static_cast<std::uint64_t>(group.block_size_tokens));
    }
  }
  if (options.duplicates == DuplicateRule::share) {
    return unsupported_option(Option::duplicates, static_cast<std::uint64_t>(options.duplicates));
  }
  return options.share_parts ? unsupported_option(Option::share_parts, 1) : Status{};
}

Status PrefixCache::prepare(BlockTablesOptions& its, const BlockManager& manager) noexcept {
  PrefixOptions& options = its.prefix_cache;
  if (!options.is_on) return {};
  if (Status s = check_option(Option::max_extra_keys, options.max_extra_keys, 0,
                              PrefixOptions::kMostExtraKeys);
      !s) {
    return s;
  }
  if (Status s = check_option(Option::history_entries, options.history_entries, 0, kMostEntries);
      !s) {
    return s;
  }
  if (Status s = check_enum(Option::duplicates, options.duplicates, DuplicateRule::wait); !s) {
    return s;
  }
  if (Status s =
          check_option(Option::max_accounts, options.max_accounts, 0, PrefixOptions::kMostAccounts);
      !s) {
    return s;
  }
  if (options.ghost_blocks != 0) {
    if (Status s = check_option(Option::ghost_blocks, options.ghost_blocks,
                                PrefixOptions::kFewestGhostBlocks, PrefixOptions::kMostGhostBlocks);
        !s) {
      return s;
    }
    if (Status s = check_option(Option::num_blocks, room_of(manager, its), 1,
                                KvLayout::kMaxBlocks / (kGhostHalves.back() / 2));
        !s) {
      return s;
    }
  }
  if (Status s = check_groups(options, its.groups); !s) return s;
  if (options.hash_key[0] != 0 || options.hash_key[1] != 0) return {};
  const Result<std::array<std::uint64_t, 2>> key = draw_key();
  if (key) options.hash_key = *key;
  return key.status();
}

std::int64_t PrefixCache::bytes(std::int64_t num_blocks,
                                const BlockTablesOptions& options) noexcept {
  const PrefixOptions& prefix = options.prefix_cache;
  if (!prefix.is_on) return 0;
  const std::int64_t block_size = block_size_of(options);
  const std::int64_t of_sequence =
      static_cast<std::int64_t>(sizeof(PrefixChain) + kTakers * sizeof(BlockTaker)) +
      block_size * static_cast<std::int64_t>(sizeof(std::int32_t)) +
      prefix.max_extra_keys * static_cast<std::int64_t>(sizeof(ExtraKey));
  return PrefixIndex::bytes(num_blocks, block_size, prefix.max_extra_keys) +
         2 * PrefixHistory::bytes(history_entries(prefix, num_blocks)) +
         PrefixEvictions::bytes(eviction_notes(prefix, num_blocks)) +
         num_births(num_blocks) * static_cast<std::int64_t>(sizeof(std::uint32_t)) +
         std::int64_t{BlockTables::kPageEntries} * static_cast<std::int64_t>(sizeof(Hash128)) +
         SaltAccounts::bytes(num_blocks, prefix.max_accounts) +
         (prefix.ghost_blocks == 0
              ? 0
              : GhostIndex::host_bytes(ghost_options(prefix, num_blocks)) +
                    num_blocks * static_cast<std::int64_t>(sizeof(std::uint64_t))) +
         options.max_sequences * of_sequence +
         (options.groups.empty() ? 0
                                 : PrefixCompanions::bytes(num_blocks, std::ssize(options.groups)));
}

PrefixCache::PrefixCache(BlockManager& manager, const BlockTablesOptions& options)
    : manager_(&manager),
      contents_(manager),
      hash_(options.prefix_cache.hash_key),
      block_size_(static_cast<std::size_t>(block_size_of(options))),
      max_keys_(static_cast<std::size_t>(options.prefix_cache.max_extra_keys)),
      duplicates_(options.prefix_cache.duplicates),
      shares_parts_(options.prefix_cache.share_parts),
      fault_(prefix_fault()),
      index_(manager.num_blocks(), block_size_of(options), options.prefix_cache.max_extra_keys),
      removed_(history_entries(options.prefix_cache, manager.num_blocks())),
      evictions_(eviction_notes(options.prefix_cache, manager.num_blocks())),
      takers_(static_cast<std::size_t>(options.max_sequences * kTakers)),
      registered_(history_entries(options.prefix_cache, manager.num_blocks())),
      chains_(static_cast<std::size_t>(options.max_sequences)),
      run_(static_cast<std::size_t>(BlockTables::kPageEntries)),
      tails_(static_cast<std::size_t>(options.max_sequences) * block_size_),
      keys_(static_cast<std::size_t>(options.max_sequences) * max_keys_),
      birth_shift_(birth_shift(manager.num_blocks())),
      born_(static_cast<std::size_t>(num_births(manager.num_blocks()))),
      accounts_(manager, options.prefix_cache.max_accounts),
      companions_(make_companions(manager, options.groups)),
      ghosts_(make_ghosts(options.prefix_cache, room_of(manager, options))),
      ghost_ids_(ghosts_ == nullptr ? 0 : static_cast<std::size_t>(manager.num_blocks())),
      events_(options.prefix_cache.events) {}

/// The first tokens rise, so that a walk along the blocks meets the keys in order.
Status PrefixCache::check_keys(std::span<const ExtraKey> keys) const noexcept {
  if (keys.size() > max_keys_) {
    return invalid_option(Option::extra_keys, std::ssize(keys), 0,
                          static_cast<std::int64_t>(max_keys_));
  }
  std::int64_t smallest = 0;
  for (const ExtraKey& key : keys) {
    if (Status s = check_option(Option::first_token, key.first_token, smallest, kMostEntries); !s) {
      return s;
    }
    smallest = key.first_token;
  }
  return {};
}

void PrefixCache::enter(BlockId id, Generation generation, const Hash128& hash,
                        const PrefixContent& content, std::uint32_t writer) noexcept {
  ++stats_.registrations;
  if (content.keys.empty() && index_.is_last(content.parent)) {
    index_.insert_last(id, generation, hash, content, writer, now());
  } else {
    index_.insert(id, generation, hash, content, writer);
    index_.block(id).last_use = now();
  }
  if (std::uint32_t* birth = birth_of(id); birth != nullptr) *birth = now();
}

/// A block that is still what it was loses its content too: nobody finds it any more, so an
/// evictable one is free.
void PrefixCache::remove_one(BlockId id, PrefixRemoval removal) noexcept {
  const PrefixBlock& block = index_.block(id);
  if (is_alive(id)) {
    static_cast<void>(manager_->set_content(id, block.generation, BlockContent::unwritten));
  }
  ++stats_.removals;
  ++stats_.removals_by[static_cast<std::size_t>(removal)];
  if (block.is_published()) {
    --stats_.published;
    count_removal(id, removal);
    if (events_.tell != nullptr && !is_clearing_) tell_removed(id, removal);
    removed_.add(block.hash.high, stats_.removals << 8U | static_cast<std::uint64_t>(removal));
  }
  accounts_.leave(id);
  if (companions_ != nullptr) companions_->drop(id);
  index_.erase(id);
}

/// Goes through the descendants, children first, without a stack.
void PrefixCache::remove(BlockId id, PrefixRemoval removal) noexcept {
  BlockId next = index_.last_descendant(id);
  while (next != id) {
    const BlockId parent = index_.parent_of(next).block();
    remove_one(next, PrefixRemoval::parent_removed);
    next = index_.last_descendant(parent);
  }
  remove_one(id, removal);
}

/// Records and places in the table are fetched ahead, because they lie anywhere.
void PrefixCache::evicted(std::span<const BlockId> ids) noexcept {
  constexpr std::size_t kAhead = 8;
  std::size_t taker = 0;
  std::int64_t left = num_takers_ == 0 ? std::ssize(ids) + 1 : takers_[0].count;
  std::uint64_t before = stats_.removals;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + 2 * kAhead < ids.size()) index_.prefetch_record(ids[i + 2 * kAhead]);
    if (i + kAhead < ids.size()) index_.prefetch_table(index_.block(ids[i + kAhead]).hash);
    if (i + kAhead / 2 < ids.size()) index_.prefetch_head(index_.block(ids[i + kAhead / 2]).hash);
    if (i + kAhead / 4 < ids.size()) index_.prefetch_second(index_.block(ids[i + kAhead / 4]).hash);
    if (companions_ != nullptr) companions_->lost(ids[i]);
    if (index_.block(ids[i]).is_registered()) remove(ids[i], PrefixRemoval::evicted);
    if (--left != 0) continue;
    note_taker(takers_[taker], before);
    before = stats_.removals;
    left = ++taker < num_takers_ ? takers_[taker].count : std::ssize(ids) + 1;
  }
  num_takers_ = 0;
}

void PrefixCache::note_taker(const BlockTaker& taker, std::uint64_t before) noexcept {
  if (stats_.removals == before) return;
  const std::uint64_t salt = chains_[SequenceTable::slot_of(taker.by)].salt;
  evictions_.add({before + 1, stats_.removals + 1, taker.by, salt, manager_->clock_time()});
}

void PrefixCache::forget_salt(std::uint64_t salt) noexcept {
  for (std::int64_t i = 0; i < index_.num_blocks(); ++i) {
    const BlockId id(static_cast<std::int32_t>(i));
    if (!index_.block(id).is_registered() || !index_.is_first(id)) continue;
    if (index_.block(id).origin == salt) remove(id, PrefixRemoval::forgotten);
  }
}

void PrefixCache::forget_all() noexcept {
  is_clearing_ = true;
  for (std::int64_t i = 0; i < index_.num_blocks(); ++i) {
    const BlockId id(static_cast<std::int32_t>(i));
    if (index_.block(id).is_registered()) remove(id, PrefixRemoval::forgotten);
  }
  is_clearing_ = false;
  if (events_.tell == nullptr) return;
  events_.tell({.number = ++events_told_, .kind = PrefixEventKind::cleared}, events_.context);
}

PrefixStats PrefixCache::stats() const noexcept {
  PrefixStats stats = stats_;
  stats.registered = index_.registered();
  return stats;
}

}  // namespace kvarena
