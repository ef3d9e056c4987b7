// Registers blocks behind positions that callers keep: what is there already is found, everything
// is checked, and then the rest is registered.

#include "blocktable/prefix_blocks.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace kvarena {
namespace {

Hash128 hash_of(const std::array<std::uint64_t, 2>& words) noexcept { return {words[0], words[1]}; }
std::array<std::uint64_t, 2> words_of(const Hash128& hash) noexcept {
  return {hash.low, hash.high};
}

std::uint64_t number_of(BlockId id) noexcept { return static_cast<std::uint64_t>(id.value); }

/// In the marks of a block: the call has named it.
constexpr std::uint32_t kNamed = 1;

/// The hashes of some blocks that follow one another.
struct HashedRun {
  std::size_t count = 0;  // blocks
  std::array<Hash128, PrefixHash::kBatch> chains;
  std::array<Hash128, PrefixHash::kBatch> roots;
};

}  // namespace

/// The walk goes through the filled blocks in runs of PrefixHash::kBatch.
struct PrefixBlocks::Walk {
  Walk(const PrefixPosition& position, std::uint64_t tag) noexcept
      : at(position), salt_tag(tag), chain(hash_of(position.chain)), root(hash_of(position.root)) {}

  std::size_t num_keys() const noexcept { return static_cast<std::size_t>(at.num_keys); }
  PrefixLink last() const noexcept { return {at.last, at.registration}; }
  /// Moves behind the next block of the run, whose registered equal is `link`.
  void pass(const PrefixLink& link, std::size_t keys) noexcept {
    at.last = link.block();
    at.registration = link.registration();
    at.chain = words_of(run.chains[in_run]);
    at.root = words_of(run.roots[in_run]);
    at.num_keys += static_cast<std::int32_t>(keys);
    ++at.blocks;
    ++passed;
    ++in_run;
  }

  PrefixPosition at;           // behind the blocks passed
  std::uint64_t salt_tag;      // hash of the salt, for notes
  std::size_t passed = 0;      // blocks of the call
  std::size_t duplicates = 0;  // of these, those whose equal is another block
  BlockId gone = kNoBlock;     // registered for the content of the next block, and not alive
  std::size_t in_run = 0;      // the next block, in the run
  Hash128 chain;               // at the end of the run
  Hash128 root;                // the same
  HashedRun run{};
};

PrefixPosition PrefixBlocks::begin(std::uint64_t salt) const noexcept {
  const std::uint64_t known = cache_.known_as(salt);
  return {.pool = number_, .salt = known, .root = words_of(cache_.hash_.root_of(known))};
}

/// The chain is had back from the hash of the last block.
PrefixPosition PrefixBlocks::position_behind(const PrefixQuery& query,
                                             const PrefixMatch& found) const noexcept {
  PrefixPosition position = begin(query.salt);
  if (found.blocks == 0) return position;
  Hash128 root = hash_of(position.root);
  const auto size = static_cast<std::int64_t>(cache_.block_size_);
  std::size_t key = 0;
  while (key < query.extra_keys.size() && query.extra_keys[key].first_token < found.tokens) {
    const std::int64_t block = query.extra_keys[key].first_token / size;
    const auto its = cache_.keys_in_block(query.extra_keys, key, block);
    root = cache_.hash_.root_with(root, its);
    key += its.size();
  }
  const PrefixLink last = cache_.index_.link_to(found_ids(found).back());
  position.blocks = static_cast<std::int32_t>(found.blocks);
  position.num_keys = static_cast<std::int32_t>(key);
  position.root = words_of(root);
  position.chain = words_of(cache_.index_.block(last.block()).hash ^ root);
  position.last = last.block();
  position.registration = last.registration();
  return position;
}

/// A position that is not the beginning is proved by the hash of its last block.
Status PrefixBlocks::check_position(const PrefixPosition& position) const noexcept {
  const Status foreign = not_found(Resource::sequence, position.pool);
  if (position.pool != number_ || position.blocks < 0 || position.num_keys < 0) return foreign;
  const Hash128 chain = hash_of(position.chain);
  const Hash128 root = hash_of(position.root);
  if (position.last == kNoBlock) {
    const bool is_beginning = position.blocks == 0 && position.num_keys == 0 &&
                              chain == Hash128{} && root == cache_.hash_.root_of(position.salt);
    return is_beginning ? Status{} : foreign;
  }
  if (position.blocks == 0 || !check_block(position.last)) return foreign;
  const PrefixIndex& index = cache_.index_;
  if (!index.is_current({position.last, position.registration}) ||
      !cache_.is_alive(position.last)) {
    return {StatusCode::stale_handle,
            Resource::block,
            Option::none,
            0,
            number_of(position.last),
            position.registration,
            index.block(position.last).registrations};
  }
  return index.block(position.last).hash == (chain ^ root) ? Status{} : foreign;
}

/// Checks numbers alone: blocks, tokens and keys fit each other and the position.
Status PrefixBlocks::check_filled(const PrefixPosition& position,
                                  const Filled& filled) const noexcept {
  const auto size = static_cast<std::int64_t>(cache_.block_size_);
  const std::int64_t count = std::ssize(filled.blocks.ids);
  if (std::ssize(filled.tokens) != count * size) {
    return invalid_argument(Resource::num_tokens, std::ssize(filled.tokens), count * size,
                            count * size);
  }
  const std::int64_t before = position.blocks * size;
  if (before + count * size > kMaxTokens) {
    return invalid_argument(Resource::num_tokens, count * size, 0, kMaxTokens - before);
  }
  if (Status s = cache_.check_keys(filled.keys); !s) return s;
  const auto passed = std::ranges::count_if(
      filled.keys, [before](const ExtraKey& key) { return key.first_token < before; });
  if (passed == position.num_keys) return {};
  return invalid_option(Option::extra_keys, passed, position.num_keys, position.num_keys);
}

/// Hashes the next blocks.
void PrefixBlocks::hash_run(Walk& walk, const Filled& filled) const noexcept {
  const std::size_t size = cache_.block_size_;
  HashedRun& run = walk.run;
  run.count = std::min(PrefixHash::kBatch, filled.blocks.ids.size() - walk.passed);
  cache_.hash_.extend(walk.chain, filled.tokens.data() + walk.passed * size, size,
                      std::span(run.chains).first(run.count));
  walk.chain = run.chains[run.count - 1];
  walk.in_run = 0;
  std::size_t key = walk.num_keys();
  for (std::size_t i = 0; i < run.count; ++i) {
    const auto its =
        cache_.keys_in_block(filled.keys, key, walk.at.blocks + static_cast<std::int64_t>(i));
    if (!its.empty()) walk.root = cache_.hash_.root_with(walk.root, its);
    key += its.size();
    run.roots[i] = walk.root;
    cache_.prefetch_own(filled.blocks.ids[walk.passed + i], run.chains[i] ^ walk.root);
  }
}

/// Passes the leading blocks whose contents are registered. A block behind one that is not
/// registered cannot be.
void PrefixBlocks::find_registered(Walk& walk, const Filled& filled) const noexcept {
  while (walk.passed < filled.blocks.ids.size()) {
    if (walk.in_run == walk.run.count) hash_run(walk, filled);
    const auto its = cache_.keys_in_block(filled.keys, walk.num_keys(), walk.at.blocks);
    const PrefixContent content{filled.tokens.data() + walk.passed * cache_.block_size_, its,
                                walk.last(), walk.at.salt};
    const BlockId equal =
        cache_.index_.find(walk.run.chains[walk.in_run] ^ walk.run.roots[walk.in_run], content);
    if (equal == kNoBlock) return;
    if (!cache_.is_alive(equal)) {
      walk.gone = equal;
      return;
    }
    if (equal != filled.blocks.ids[walk.passed]) ++walk.duplicates;
    walk.pass(cache_.index_.link_to(equal), its.size());
  }
}

/// Marks each block in its record: in the writer, which no registered block of a pool has.
Status PrefixBlocks::check_each_new(std::span<const BlockId> ids, std::size_t found,
                                    std::size_t& looked_at) noexcept {
  for (; looked_at < ids.size(); ++looked_at) {
    const BlockId id = ids[looked_at];
    PrefixBlock& block = cache_.index_.block(id);
    const bool is_new = looked_at >= found;
    const bool is_held = cache_.contents_.is_referenced(id);
    if (!is_held || (is_new && !cache_.contents_.is_unwritten(id))) {
      return failed_precondition(Resource::block, number_of(id));
    }
    const std::uint32_t unmarked = block.is_registered() ? PrefixBlock::kWriter : 0;
    if (block.writer() != unmarked) return duplicate_argument(Resource::block, number_of(id));
    block.marks ^= kNamed;
  }
  return {};
}

/// Checks that each block that is not found can be registered, and that no block is named twice.
Status PrefixBlocks::check_new(std::span<const BlockId> ids, std::size_t found) noexcept {
  std::size_t looked_at = 0;
  const Status status = check_each_new(ids, found, looked_at);
  for (const BlockId id : ids.first(looked_at)) {
    cache_.index_.block(id).marks ^= kNamed;
  }
  return status;
}

/// Enters a block. Only tests plant a fault.
void PrefixBlocks::enter(BlockId id, Generation generation, const Hash128& hash,
                         const PrefixContent& content, std::uint64_t salt) {
  const PrefixBlock& former = cache_.index_.block(id);
  if (cache_.fault_ == PrefixFault::compares_stale_tokens && former.registrations != 0) {
    const std::int32_t* const tokens = cache_.index_.tokens_of(id);
    const std::vector<std::int32_t> kept(tokens, tokens + cache_.block_size_);
    const PrefixContent stale{kept.data(), content.keys, content.parent, content.salt};
    return cache_.enter(id, generation, former.hash, stale, PrefixBlock::kWriter);
  }
  cache_.enter(id, generation, hash, content, PrefixBlock::kWriter);
  if (cache_.fault_ == PrefixFault::publishes_at_registration) cache_.publish_block(id, salt);
}

/// Registers the next block of the walk.
void PrefixBlocks::register_next(Walk& walk, const Filled& filled) noexcept {
  if (walk.in_run == walk.run.count) hash_run(walk, filled);
  const Hash128 chain = walk.run.chains[walk.in_run];
  const Hash128 root = walk.run.roots[walk.in_run];
  const BlockId id = filled.blocks.ids[walk.passed];
  const Generation generation = filled.blocks.generations[walk.passed];
  const auto its = cache_.keys_in_block(filled.keys, walk.num_keys(), walk.at.blocks);
  const PrefixContent content{filled.tokens.data() + walk.passed * cache_.block_size_, its,
                              walk.last(), walk.at.salt};
  cache_.contents_.begin_writing_blank(id);
  enter(id, generation, chain ^ root, content, walk.at.salt);
  cache_.registered_.add(chain.high, RegistrationFact(walk.salt_tag, root).packed());
  if (salts_.size() != 0) salts_[static_cast<std::size_t>(id.value)] = walk.at.salt;
  walk.pass(cache_.index_.link_to(id), its.size());
}

Result<std::int64_t> PrefixBlocks::add(PrefixPosition& position, const Filled& filled) {
  if (Status s = check_handles(filled.blocks); !s) return s;
  notice(filled.blocks.ids);
  if (Status s = check_position(position); !s) return s;
  if (Status s = check_filled(position, filled); !s) return s;
  Walk walk(position, cache_.hash_.root_of(position.salt).high);
  find_registered(walk, filled);
  const std::size_t found = walk.passed;
  if (walk.gone != kNoBlock) notice(std::span(&walk.gone, 1));  // blocks of the call may go with it
  if (Status s = check_new(filled.blocks.ids, found); !s) return s;
  while (walk.passed < filled.blocks.ids.size()) register_next(walk, filled);
  cache_.stats_.duplicates += walk.duplicates;
  position = walk.at;
  return static_cast<std::int64_t>(walk.passed - found);
}

}  // namespace kvarena
