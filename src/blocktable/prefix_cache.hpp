#pragma once

/// @file
/// `PrefixCache`: the prefix cache of some tables. It has an index of registered blocks, and for
/// each sequence its chain: the leading blocks that the index knows, the hash at their end, and the
/// tokens behind them that do not fill a block yet.
///
/// A registered block is either `being_written` by one sequence, its writer, or published. Before
/// the writer gives up a block that is being written, it unregisters it. A published block is never
/// rewritten (BlockManager::claims), so its registration outlives its sequences. When a block is
/// unregistered, so is everything behind it, because nothing could match that any more.
///
/// With groups of layers, the blocks of one group are registered: the first whose layers keep all
/// tokens. What the other groups keep for them are companions (prefix_companions.hpp).

#include "allocator/block_contents.hpp"
#include "blocktable/block_stride.hpp"
#include "blocktable/ghost_index.hpp"
#include "blocktable/page_tree.hpp"
#include "blocktable/prefix_chain.hpp"
#include "blocktable/prefix_companions.hpp"
#include "blocktable/prefix_evictions.hpp"
#include "blocktable/prefix_faults.hpp"
#include "blocktable/prefix_hash.hpp"
#include "blocktable/prefix_history.hpp"
#include "blocktable/prefix_index.hpp"
#include "blocktable/salt_accounts.hpp"
#include "blocktable/sequence_table.hpp"
#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/prefix.hpp"
#include "kvarena/blocktable/prefix_figures.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace kvarena {

/// The prefix cache of some tables.
class PrefixCache {
 public:
  /// A sequence as its tables know it.
  struct Owner {
    std::uint32_t slot;
    Sequence& sequence;
    TablePages& pages;
    PageTree& table;  ///< its blocks; with groups, those of the group that is registered
  };

  /// Makes a cache whose options `prepare` has returned.
  PrefixCache(BlockManager& manager, const BlockTablesOptions& options);
  /// Checks the options and draws a key if need be. Returns invalid_argument with the option, its
  /// value and its range, what check_groups returns, or io_error.
  static Status prepare(BlockTablesOptions& options, const BlockManager& manager) noexcept;
  /// Checks whether tables with these groups can have such a cache. Returns unsupported (kind) for
  /// a cross group and when no group is full, (block_size_tokens) for groups with tokens in blocks
  /// of other sizes, and (duplicates, max_accounts, share_parts, ghost_blocks) for what only
  /// tables without groups have.
  static Status check_groups(const PrefixOptions& options,
                             std::span<const TableGroup> groups) noexcept;
  /// The group whose blocks are registered: the first full one. 0 without groups.
  static std::size_t registered_group(std::span<const TableGroup> groups) noexcept;
  static std::int64_t bytes(std::int64_t num_blocks, const BlockTablesOptions& options) noexcept;
  Status check_keys(std::span<const ExtraKey> keys) const noexcept;

  // prefix_match.cpp
  /// Finds the longest published prefix. The first `ids.size()` blocks of it are written to `ids`
  /// and `generations`; it has no more than these. The block of a part is written behind them.
  /// `evictable` of the first are evictable.
  PrefixMatch match(const PrefixQuery& query, std::span<BlockId> ids,
                    std::span<Generation> generations, std::int64_t& evictable) const noexcept;
  /// The sequence has got the blocks of `found`, which are `ids`.
  void adopted(std::uint32_t slot, const PrefixMatch& found, std::span<const BlockId> ids) noexcept;
  /// The question for tokens of this sequence.
  PrefixQuery query_of(std::uint32_t slot, std::span<const std::int32_t> tokens) const noexcept {
    return {tokens, chains_[slot].salt, keys_of(slot)};
  }
  /// Counts a query that ended like this.
  void count_query(const PrefixQuery& query, const PrefixMatch& found) noexcept;

  // prefix_chain.cpp
  void begin(std::uint32_t slot, std::uint64_t salt, std::span<const ExtraKey> keys) noexcept;
  void fork(const Owner& parent, const Owner& child) noexcept;
  /// Prepares the cache for the next token of a sequence: first its chain, then, once that has
  /// arrived, the block behind which the token fills another.
  void prefetch_chain(std::uint32_t slot) const noexcept { __builtin_prefetch(&chains_[slot], 1); }
  void prefetch_last(std::uint32_t slot) const noexcept {
    const PrefixChain& c = chains_[slot];
    if (num_in_tail(c) + 1 != block_size_ || c.last.is_beginning()) return;
    index_.prefetch_record(c.last.block());
  }
  /// Tells the next token of a sequence, unless it fills a block. Returns whether it did.
  bool add_to_tail(std::uint32_t slot, std::int32_t token) noexcept {
    PrefixChain& c = chains_[slot];
    const std::size_t in_tail = num_in_tail(c);
    if (in_tail + 1 >= block_size_) return false;
    tail(slot)[in_tail] = token;
    ++c.known;
    return true;
  }
  /// Tells the next token of a sequence, which fills a block, in three steps, so that those of
  /// other sequences can be between them. The first two change nothing and return or need the chain
  /// at the end of the block.
  Hash128 hash_filled(const Owner& owner, std::int32_t token) noexcept;
  void prefetch_equal(std::uint32_t slot, const Hash128& chain) const noexcept {
    static_cast<void>(index_.prefetch_block(chain ^ chains_[slot].root));
  }
  void add_filled(const Owner& owner, const Hash128& chain) noexcept;
  /// Tells the next tokens of a sequence.
  void add_tokens(const Owner& owner, std::span<const std::int32_t> tokens) noexcept;
  void publish(const Owner& owner, std::int64_t length) noexcept;
  /// Takes back what was told behind `length`: what is not published there is unregistered. An undo
  /// `unpublishes` too: what the sequence has published there was never written.
  void untell(const Owner& owner, std::int64_t length, bool unpublishes = false) noexcept;
  /// The sequence is about to be cut. Does what untell does, and gives up what is left of a chain
  /// that is not whole. Doubts about what goes are over.
  void cut(const Owner& owner, std::int64_t length, bool unpublishes = false) noexcept {
    if (!unpublishes && gives_up_rest(owner, length)) give_up(owner);
    std::int32_t& doubt = chains_[owner.slot].doubt;
    if (length <= doubt) doubt = PrefixChain::kNoDoubt;
    untell(owner, length, unpublishes);
  }
  /// The tokens behind `length` may be unwritten. Does what untell does.
  void distrust(const Owner& owner, std::int64_t length) noexcept;
  /// The sequence is about to end: what it has not published is unregistered.
  void end(const Owner& owner) noexcept;
  void forget(const Owner& owner) noexcept;

  /// Counts the evictable blocks of each salt, with those that other groups keep for them, and
  /// calls visit(salt, blocks). `firsts` and `counts` are scratch memory, [num_blocks]. O(blocks +
  /// salts log salts), for explanations.
  void count_evictable(
      std::span<BlockId> firsts, std::span<Generation> counts,
      const std::function<void(std::uint64_t, std::int64_t)>& visit) const noexcept;
  // prefix_cache.cpp
  void forget_salt(std::uint64_t salt) noexcept;
  void forget_all() noexcept;
  /// Forgets all, and ends what the cache holds of the manager.
  void give_back() noexcept {
    forget_all();
    accounts_.release_all();
  }
  /// Says who has taken the next `count` blocks, at least 1, that `evicted` is about to be told.
  /// Each sequence can be said kTakers times.
  static constexpr std::int64_t kTakers = 2;
  void add_taker(SequenceId by, std::int64_t count) noexcept {
    takers_[num_takers_++] = {by, count};
  }
  /// An allocation has taken these blocks, which were evictable.
  void evicted(std::span<const BlockId> ids) noexcept;
  PrefixStats stats() const noexcept;
  PrefixUse use() const noexcept;
  const PrefixChain& chain(std::uint32_t slot) const noexcept { return chains_[slot]; }
  const BlockContents& contents() const noexcept { return contents_; }
  DuplicateRule duplicates() const noexcept { return duplicates_; }
  /// Takes `missing` blocks from the floors of those who want them (SaltAccounts::want).
  void use_floors(std::int64_t missing) noexcept;
  SaltAccounts& accounts() noexcept { return accounts_; }
  const SaltAccounts& accounts() const noexcept { return accounts_; }
  /// Null without groups.
  PrefixCompanions* companions() noexcept { return companions_.get(); }
  /// Copies the blocks of a sequence's prefix from number `first` on, as its chain knows them:
  /// kNoBlock for those that are not published. O(blocks of the chain behind `first`).
  void copy_nodes(std::uint32_t slot, std::int32_t first, std::span<BlockId> out) const noexcept;
  /// The account of a sequence's salt, or SaltAccounts::kNone.
  std::int32_t account_of(std::uint32_t slot) const noexcept { return chains_[slot].account - 1; }

  /// The salt by which a tenant is known: its own, unless a test has planted a fault.
  std::uint64_t known_as(std::uint64_t salt) const noexcept {
    return fault_ == PrefixFault::drops_salts ? 0 : salt;
  }

  // prefix_parts.cpp
  /// The sequence has got the part of its match too, after `adopted`.
  void adopt_part(std::uint32_t slot, BlockId part) noexcept;

  // prefix_tenants.cpp
  /// The registered block to which a block of some group belongs at this generation, or kNoBlock.
  BlockId node_of(BlockId id, Generation generation, bool is_companion) const noexcept;
  /// Checks that a sequence of this length may have what belongs to a node in its block `number`.
  /// `agreed`: a node before it that has been checked, or kNoBlock. Returns invalid_argument (salt,
  /// extra_keys, first_token). O(blocks behind `agreed`).
  Status check_tenant(BlockId node, std::int64_t number, BlockId agreed, std::int64_t length,
                      const SequenceOptions& options) const noexcept;

  // prefix_checks.cpp
  /// `table_of` returns the registered group's table of a sequence.
  Status check(const SequenceTable& sequences, const TablePages& pages,
               const std::function<const PageTree&(const Sequence&)>& table_of) const;

 private:
  friend struct PrefixProbe;  // tests plant faults with it
  friend class PrefixBlocks;  // registers blocks without sequences

  std::int32_t* tail(std::uint32_t slot) noexcept { return tails_.data() + slot * block_size_; }
  /// The keys that begin in block `block`, from `first` on.
  std::span<const ExtraKey> keys_in_block(std::span<const ExtraKey> keys, std::size_t first,
                                          std::int64_t block) const noexcept;
  /// The extra keys of a sequence.
  std::span<const ExtraKey> keys_of(std::uint32_t slot) const noexcept {
    return {keys_.data() + slot * max_keys_, static_cast<std::size_t>(chains_[slot].num_keys)};
  }
  /// The salt of a registered block. O(blocks before it).
  std::uint64_t salt_of(BlockId id) const noexcept;
  Status check_keys_of(BlockId id, std::int64_t number, std::int64_t length,
                       std::span<const ExtraKey> keys) const noexcept;
  /// Whether the manager agrees that a registered block still has the content it had.
  bool is_alive(BlockId id) const noexcept {
    const PrefixBlock& block = index_.block(id);
    return contents_.has(
        id, block.generation,
        block.is_published() ? BlockContent::published : BlockContent::being_written);
  }
  /// The tokens of a sequence that are in its tail.
  std::size_t num_in_tail(const PrefixChain& chain) const noexcept {
    return static_cast<std::size_t>(chain.known) -
           static_cast<std::size_t>(chain.blocks) * block_size_;
  }
  /// A block of a table.
  struct Entry {
    BlockId id;
    Generation generation;
  };
  /// Blocks that are added together: those of a sequence on one leaf of its table.
  struct Run {
    const BlockId* ids;
    const Generation* generations;
    const std::int32_t* tokens;
    std::size_t count;
    std::size_t ready = 0;  ///< hashed, and asked for
  };
  Run run_of(const Owner& owner, const std::int32_t* tokens, std::size_t blocks) const noexcept;
  bool add_blocks(const Owner& owner, Run& run) noexcept;
  /// Prepares the cache for a block with this hash to be registered.
  void prefetch_own(BlockId id, const Hash128& hash) const noexcept {
    index_.prefetch_table(hash);
    index_.prefetch_record(id);
    index_.prefetch_contents(id);
    contents_.prefetch_change(id);
  }
  void look_ahead(Run& run, std::size_t i, const PrefixChain& c) noexcept;
  std::size_t add_usual(std::uint32_t slot, Run& run, std::size_t first) noexcept;
  bool add_block(const Owner& owner, const Entry& own, const std::int32_t* tokens,
                 const Hash128& chain) noexcept;
  bool register_block(std::uint32_t slot, const Entry& own, const Hash128& hash,
                      const PrefixContent& content) noexcept;
  bool publish_blocks(const Owner& owner, std::span<const BlockId> ids) noexcept;
  /// Registers a block whose content has been set.
  void enter(BlockId id, Generation generation, const Hash128& hash, const PrefixContent& content,
             std::uint32_t writer) noexcept;
  /// Publishes a registered block that is alive and being written.
  void publish_block(BlockId id, std::uint64_t salt) noexcept {
    contents_.publish_written(id);
    index_.block(id).marks |= PrefixBlock::kPublished;
    ++stats_.published;
    if (events_.tell != nullptr) [[unlikely]]
      tell_stored(id, salt);
  }
  /// Makes room for a block of a salt that has as many as it may.
  void keep_cap(std::int32_t account) noexcept;
  /// Whether the chain has blocks, and they are all still registered.
  bool is_whole(std::uint32_t slot) const noexcept {
    return chains_[slot].blocks != 0 && index_.is_current(chains_[slot].last);
  }
  /// Whether a cut to this length takes registered blocks from a sequence with an account whose
  /// chain is not whole.
  bool gives_up_rest(const Owner& owner, std::int64_t length) const noexcept;
  /// Whether a sequence's own block `number` is registered. False when it has no such block.
  bool has_registered(const Owner& owner, std::int32_t number) const noexcept;
  /// The leading blocks of a sequence's prefix that are registered.
  struct Prefix {
    PrefixLink last;
    std::int32_t blocks = 0;
  };
  /// O(1) when the chain is whole, else O(blocks).
  Prefix registered_prefix(const Owner& owner) const noexcept;
  /// Says that a sequence gives up the published blocks of its prefix, from the last to the first.
  void give_up(const Owner& owner) noexcept;
  void share_equals(const Owner& owner, std::int32_t end) noexcept;
  void share_equal(const Owner& owner, std::int32_t index, BlockId block) noexcept;
  bool is_written_by(std::uint32_t slot, BlockId id) const noexcept {
    const PrefixBlock& block = index_.block(id);
    return block.is_registered() && !block.is_published() && block.writer() == slot;
  }
  /// Whether the chain's blocks are all still registered. Resets the chain if they are not.
  bool holds_together(const Owner& owner) noexcept;
  void reset(const Owner& owner) noexcept;
  void abort_written(const Owner& owner) noexcept;
  /// Restores the chain of a slot to its first `blocks` blocks, the last of which is `last`.
  void rewind(std::uint32_t slot, std::int32_t blocks, const PrefixLink& last) noexcept;
  void keep_tail(std::uint32_t slot, BlockId block, std::int64_t count) noexcept;
  /// Unregisters a block and everything behind it.
  void remove(BlockId id, PrefixRemoval removal) noexcept;
  void remove_one(BlockId id, PrefixRemoval removal) noexcept;
  /// Notes who has caused the removals behind the first `before`.
  void note_taker(const BlockTaker& taker, std::uint64_t before) noexcept;
  // prefix_telemetry.cpp
  void count_reuses(std::span<const BlockId> ids) noexcept;
  void count_removal(BlockId id, PrefixRemoval removal) noexcept;
  void observe(const PrefixQuery& query) noexcept;
  void tell_stored(BlockId id, std::uint64_t salt) noexcept;
  void tell_removed(BlockId id, PrefixRemoval removal) noexcept;
  /// Where it is noted when a block was registered; nullptr: it is not, to save memory.
  std::uint32_t* birth_of(BlockId id) noexcept {
    const auto number = static_cast<std::uint32_t>(id.value);
    const std::uint32_t noted = number >> birth_shift_;
    return noted << birth_shift_ == number ? &born_[noted] : nullptr;
  }
  std::uint32_t now() const noexcept { return static_cast<std::uint32_t>(stats_.registrations); }
  /// How far a query has been hashed.
  struct Hashed {
    std::int64_t blocks = 0;
    Hash128 chain;             // at the end of these blocks
    Hash128 root;              // the same
    std::size_t next_key = 0;  // the first extra key behind these blocks
  };
  BlockId registered_for(BlockId id) const noexcept;
  std::size_t count_by_first(std::span<BlockId> firsts,
                             std::span<Generation> counts) const noexcept;
  std::int64_t equal_beginning(const PrefixQuery& query, std::int64_t begin, BlockId id,
                               std::int64_t most) const noexcept;
  /// Looks for a block behind those found whose first tokens are the next of the query.
  void find_part(const PrefixQuery& query, std::span<BlockId> ids,
                 std::span<Generation> generations, PrefixMatch& match) const noexcept;
  void hash_batch(const PrefixQuery& query, std::int64_t most, Hashed& at,
                  PrefixHashRing& ring) const noexcept;
  BlockId find_hashed(const PrefixQuery& query, const PrefixContent& content, std::int64_t i,
                      std::int64_t most, Hashed& hashed, PrefixHashRing& ring) const noexcept;
  /// How far a query has been found.
  struct Search {
    Search(const std::int32_t* first, std::span<BlockId> found, std::span<Generation> its,
           const Hash128& salt_root) noexcept
        : tokens(first), ids(found), generations(its), root(salt_root) {}

    const std::int32_t* tokens;
    std::span<BlockId> ids;
    std::span<Generation> generations;
    std::int64_t blocks = 0;  // found
    PrefixLink last;          // of them
    Hash128 root;             // at their end
    std::size_t next_key = 0;
    std::int64_t evictable = 0;  // of them
    BlockStride stride;
  };
  void walk(Search& at, std::int64_t end) const noexcept;
  void pass(Search& at, BlockId id, std::span<const ExtraKey> keys) const noexcept;
  void prefetch_ahead(const BlockStride& stride) const noexcept;
  void explain(const PrefixQuery& query, const Hash128& chain, const Hash128& root, BlockId found,
               PrefixMatch& match) const noexcept;

  Status check_hashes(std::vector<std::int32_t>& depths) const;
  struct Writer {
    const Sequence* sequence = nullptr;
    const PageTree* table = nullptr;
  };
  Status check_block(BlockId id, std::int32_t depth, const std::vector<Writer>& by_slot,
                     const TablePages& pages) const;
  Status check_chain(std::uint32_t slot, const Sequence& sequence,
                     const std::vector<std::int32_t>& depths) const;

  BlockManager* manager_;
  BlockContents contents_;  // of the manager
  PrefixHash hash_;
  std::size_t block_size_;
  std::size_t max_keys_;
  DuplicateRule duplicates_;
  bool shares_parts_;
  PrefixFault fault_;  // tests plant one
  PrefixIndex index_;
  PrefixHistory removed_;         // by hash; the fact is the serial of the removal and its cause
  PrefixEvictions evictions_;     // who took the blocks of which removals
  LazyArray<BlockTaker> takers_;  // [slots, kTakers], of the next call of evicted
  std::size_t num_takers_ = 0;
  PrefixHistory registered_;       // by chain; the fact is made of the hashes of salt and root
  LazyArray<PrefixChain> chains_;  // by slot of the sequence
  LazyArray<Hash128> run_;         // [kPageEntries], chains of the blocks that are being added
  LazyArray<std::int32_t> tails_;  // [slots, block_size]
  LazyArray<ExtraKey> keys_;       // [slots, max_extra_keys]
  PrefixStats stats_;
  PrefixUse use_;                                 // without the ghosts
  int birth_shift_;                               // one in 2^birth_shift_ births is noted
  LazyArray<std::uint32_t> born_;                 // registrations when a block was registered
  SaltAccounts accounts_;                         // of some salts
  std::unique_ptr<PrefixCompanions> companions_;  // null: there are no groups
  std::unique_ptr<GhostIndex> ghosts_;            // null: none
  LazyArray<std::uint64_t> ghost_ids_;            // of one query
  PrefixEventSink events_;
  std::uint64_t events_told_ = 0;
  bool is_clearing_ = false;  // forget_all tells one event for all blocks
};

}  // namespace kvarena
