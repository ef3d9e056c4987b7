// The proof of the prefix cache: of its blocks, against the manager, and of its chains.

#include "blocktable/prefix_cache.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

Status violated(Invariant invariant, BlockId block, std::int64_t expected = 0,
                std::int64_t found = 0) noexcept {
  return {StatusCode::invariant_violated,
          Resource::block,
          Option::none,
          static_cast<std::int32_t>(invariant),
          static_cast<std::uint64_t>(block.value),
          static_cast<std::uint64_t>(expected),
          static_cast<std::uint64_t>(found)};
}

/// The hashes of a block, made anew from its contents.
struct Made {
  bool is_made = false;
  std::int32_t depth = 0;
  Hash128 chain;
  Hash128 root;
  std::uint64_t salt = 0;
};

}  // namespace

/// Makes the hash of each block from its tokens, extra keys and parents, first blocks first. A
/// block that lacks a parent, or is its own ancestor, is left unmade.
Status PrefixCache::check_hashes(std::vector<std::int32_t>& depths) const {
  const auto size = static_cast<std::int64_t>(block_size_);
  std::vector<Made> made(static_cast<std::size_t>(index_.num_blocks()));
  std::vector<BlockId> way;
  for (std::int32_t i = 0; i < index_.num_blocks(); ++i) {
    if (!index_.block(BlockId(i)).is_registered()) continue;
    if (!index_.links_agree(BlockId(i))) return violated(Invariant::prefix_counts, BlockId(i));
    way.clear();
    for (BlockId id(i); id != kNoBlock && !made[static_cast<std::size_t>(id.value)].is_made;
         id = index_.parent_of(id).block()) {
      if (!index_.block(id).is_registered() || std::ssize(way) > index_.registered()) {
        return violated(Invariant::prefix_blocks, BlockId(i));
      }
      way.push_back(id);
    }
    for (; !way.empty(); way.pop_back()) {
      const BlockId id = way.back();
      const PrefixLink parent = index_.parent_of(id);
      Made& its = made[static_cast<std::size_t>(id.value)];
      if (parent.block() == kNoBlock) {
        its.salt = index_.block(id).origin;
        its.root = hash_.root_of(its.salt);
      } else {
        its = made[static_cast<std::size_t>(parent.block().value)];
      }
      std::array<ExtraKey, PrefixOptions::kMostExtraKeys> keys;
      const std::size_t num_keys = index_.block(id).num_keys();
      for (std::size_t k = 0; k < num_keys; ++k) {
        keys[k] = index_.key_of(id, k);
        keys[k].first_token += its.depth * size;
      }
      if (num_keys != 0) {
        its.root = hash_.root_with(its.root, std::span(keys).first(num_keys));
      }
      ++its.depth;
      hash_.extend(its.chain, index_.tokens_of(id), block_size_, std::span(&its.chain, 1));
      its.is_made = true;
      if ((its.chain ^ its.root) != index_.block(id).hash) {
        return violated(Invariant::prefix_blocks, id);
      }
    }
  }
  depths.resize(made.size());
  std::transform(made.begin(), made.end(), depths.begin(), [](const Made& m) { return m.depth; });
  return {};
}

/// A block that is being written lies in its writer's table, at its place and behind what the
/// writer has published.
Status PrefixCache::check_block(BlockId id, std::int32_t depth, const std::vector<Writer>& by_slot,
                                const TablePages& pages) const {
  const PrefixBlock& block = index_.block(id);
  if (block.is_published()) {
    // What others set is never being_written: a published block does not go back to that.
    const bool is_early = manager_->generation(id) == block.generation &&
                          manager_->content(id) == BlockContent::being_written;
    return is_early ? violated(Invariant::prefix_blocks, id) : Status{};
  }
  if (chains_.size() == 0) return {};  // callers have the tables
  const auto slot = static_cast<std::size_t>(block.writer());
  const Writer none;
  const Writer& writer = slot < by_slot.size() ? by_slot[slot] : none;
  const std::int32_t index = depth - 1;
  if (writer.sequence == nullptr || index < chains_[slot].published ||
      index >= chains_[slot].blocks ||
      (std::int64_t{index} + 1) * static_cast<std::int64_t>(block_size_) >
          writer.sequence->length ||
      writer.table->id_at(pages, index) != id) {
    return violated(Invariant::prefix_blocks, id, depth, block.writer());
  }
  return {};
}

/// What a sequence knows fits its length, and its last block is where the chain says.
Status PrefixCache::check_chain(std::uint32_t slot, const Sequence& sequence,
                                const std::vector<std::int32_t>& depths) const {
  const PrefixChain& c = chains_[slot];
  const auto size = static_cast<std::int32_t>(block_size_);
  const bool is_doubt_right =
      c.doubt == PrefixChain::kNoDoubt || (c.known <= c.doubt && c.doubt < sequence.length);
  const bool fits = c.known <= sequence.length && c.published <= c.blocks && is_doubt_right &&
                    c.blocks == c.known / size && (c.blocks == 0) == (c.last.block() == kNoBlock);
  if (!fits) return violated(Invariant::prefix_counts, c.last.block(), c.blocks, c.known);
  if (c.blocks == 0 || !index_.is_current(c.last)) return {};
  const std::int32_t depth = depths[static_cast<std::size_t>(c.last.block().value)];
  if (depth != c.blocks || (index_.block(c.last.block()).hash ^ c.root) != c.chain) {
    return violated(Invariant::prefix_counts, c.last.block(), c.blocks, depth);
  }
  return {};
}

/// Every evictable block is registered; a registered block has the content that its record says,
/// or others have taken it.
Status PrefixCache::check(const SequenceTable& sequences, const TablePages& pages,
                          const std::function<const PageTree&(const Sequence&)>& table_of) const {
  std::vector<std::int32_t> depths;
  if (Status s = check_hashes(depths); !s) return s;
  if (Status s = accounts_.check(); !s) return s;
  std::vector<Writer> by_slot(chains_.size());
  Status first;
  sequences.for_each([&](SequenceId id, const Sequence& s) {
    const auto slot = static_cast<std::uint32_t>(SequenceTable::slot_of(id));
    by_slot[slot] = {&s, &table_of(s)};
    if (first) first = check_chain(slot, s, depths);
  });
  if (!first) return first;
  if (companions_ != nullptr) {
    const auto is_node = [this](BlockId id) {
      return index_.block(id).is_registered() && index_.block(id).is_published();
    };
    if (Status s = companions_->check(is_node); !s) return s;
  }
  std::int64_t registered = 0;
  std::int64_t published = 0;
  for (std::int32_t i = 0; i < index_.num_blocks(); ++i) {
    const BlockId id(i);
    const PrefixBlock& block = index_.block(id);
    const bool is_found = block.is_registered() && block.is_published() && is_alive(id);
    const bool may_be_other = companions_ != nullptr && !block.is_registered();
    if (manager_->state(id) == BlockState::evictable && !is_found && !may_be_other) {
      return violated(Invariant::prefix_evictable, id);
    }
    if (!block.is_registered()) continue;
    ++registered;
    published += block.is_published() ? 1 : 0;
    if (Status s = check_block(id, depths[static_cast<std::size_t>(i)], by_slot, pages); !s) {
      return s;
    }
  }
  if (registered != index_.registered() || published != stats_.published) {
    return violated(Invariant::prefix_counts, kNoBlock, registered, index_.registered());
  }
  const std::uint64_t ever = stats_.registrations - stats_.removals;
  if (ever != static_cast<std::uint64_t>(registered)) {
    return violated(Invariant::prefix_counts, kNoBlock, registered,
                    static_cast<std::int64_t>(ever));
  }
  return {};
}

}  // namespace kvarena
