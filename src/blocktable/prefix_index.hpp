#pragma once

/// @file
/// `PrefixIndex`: the registered blocks of one table group, found by content. A block is registered
/// under the hash of its content. Its record has its hash and its parent, the block before it; its
/// tokens and extra keys lie in an array of their own. Blocks with one parent are linked, so that
/// what depends on a block is found when the block goes.
///
/// The index compares contents: `find` returns a block only if its tokens, its extra keys and its
/// parent, or for a first block its salt, are those asked for. A parent is named by its id and its
/// registration, a number that the block had not before.
///
/// It knows no manager and no sequence. All memory is allocated at construction: 60 bytes a block
/// at most, and the contents. What it returns depends on contents alone, never on a hash or key.

#include "base/lazy_array.hpp"
#include "blocktable/prefix_hash.hpp"
#include "blocktable/prefix_tokens.hpp"
#include "kvarena/base/ids.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// A registered block, as a parent of others. One word, because it is written and read for each
/// block of a prompt.
class PrefixLink {
 public:
  PrefixLink() = default;
  PrefixLink(BlockId block, std::uint32_t registration) noexcept
      : word_(static_cast<std::uint64_t>(registration) << 32U |
              static_cast<std::uint32_t>(block.value)) {}
  explicit PrefixLink(std::uint64_t word) noexcept : word_(word) {}

  /// kNoBlock: the beginning of a sequence.
  BlockId block() const noexcept {
    return BlockId(static_cast<std::int32_t>(static_cast<std::uint32_t>(word_)));
  }
  /// How often the block had been registered.
  std::uint32_t registration() const noexcept { return static_cast<std::uint32_t>(word_ >> 32U); }
  bool is_beginning() const noexcept { return block() == kNoBlock; }
  std::uint64_t word() const noexcept { return word_; }
  friend bool operator==(const PrefixLink&, const PrefixLink&) = default;

 private:
  std::uint64_t word_ = static_cast<std::uint32_t>(kNoBlock.value);
};

/// What a block holds, without what is before its parent's end.
struct PrefixContent {
  const std::int32_t* tokens = nullptr;  ///< [block_size]
  std::span<const ExtraKey> keys;        ///< those that begin in the block
  PrefixLink parent;                     ///< the block before
  std::uint64_t salt = 0;                ///< of the sequence
};

/// The record of a block.
struct PrefixBlock {
  static constexpr std::uint32_t kRegistered = 1U << 31;
  static constexpr std::uint32_t kPublished = 1U << 30;
  static constexpr std::uint32_t kFirst = 1U << 29;                 ///< it has no parent
  static constexpr int kKeysShift = 24;                             ///< five bits: extra keys
  static constexpr std::uint32_t kWriter = (1U << kKeysShift) - 1;  ///< slot of the sequence that
                                                                    ///< writes it

  Hash128 hash;
  std::uint64_t origin = 0;         ///< the parent as id and registration; without one, the salt
  Generation generation;            ///< of the block, when it was registered
  std::uint32_t registrations = 0;  ///< of this block, ever
  // Links are block ids plus 1; 0 is none.
  std::uint32_t next = 0;  ///< with the same place in the table
  std::uint32_t first_child = 0;
  std::uint32_t next_sibling = 0;
  std::uint32_t previous_sibling = 0;
  std::uint32_t marks = 0;
  std::uint32_t last_use = 0;  ///< registrations of the cache when it was registered or last found

  bool is_registered() const noexcept { return (marks & kRegistered) != 0; }
  bool is_published() const noexcept { return (marks & kPublished) != 0; }
  std::uint32_t writer() const noexcept { return marks & kWriter; }
  std::size_t num_keys() const noexcept {
    return (marks >> kKeysShift) & static_cast<std::uint32_t>(PrefixOptions::kMostExtraKeys);
  }
};
static_assert(sizeof(PrefixBlock) == 56);

/// The blocks of one group.
class PrefixIndex {
 public:
  PrefixIndex(std::int64_t num_blocks, std::int64_t block_size, std::int32_t max_extra_keys);
  static std::int64_t bytes(std::int64_t num_blocks, std::int64_t block_size,
                            std::int32_t max_extra_keys) noexcept;

  std::int64_t num_blocks() const noexcept { return static_cast<std::int64_t>(blocks_.size()); }
  std::int64_t registered() const noexcept { return registered_; }
  PrefixBlock& block(BlockId id) noexcept { return blocks_[index(id)]; }
  const PrefixBlock& block(BlockId id) const noexcept { return blocks_[index(id)]; }
  /// The link by which the children of a registered block name it.
  PrefixLink link_to(BlockId id) const noexcept { return {id, block(id).registrations}; }
  /// Whether a link names a block that is still registered, or the beginning.
  bool is_current(const PrefixLink& link) const noexcept {
    return link.is_beginning() || (block(link.block()).is_registered() &&
                                   block(link.block()).registrations == link.registration());
  }
  /// Whether no registered block follows this link. Requires a current link.
  bool is_last(const PrefixLink& link) const noexcept {
    return !link.is_beginning() && block(link.block()).first_child == 0;
  }
  /// The parent of a registered block; kNoBlock for a first block.
  PrefixLink parent_of(BlockId id) const noexcept {
    return is_first(id) ? PrefixLink() : PrefixLink(block(id).origin);
  }
  /// The newest child of a registered block, and the child before that; kNoBlock: none.
  BlockId first_child(BlockId id) const noexcept { return linked(block(id).first_child); }
  BlockId next_sibling(BlockId id) const noexcept { return linked(block(id).next_sibling); }
  bool is_first(BlockId id) const noexcept { return (block(id).marks & PrefixBlock::kFirst) != 0; }
  /// The tokens of a registered block. [block_size]
  const std::int32_t* tokens_of(BlockId id) const noexcept { return words(id); }
  /// Extra key `i` of a registered block. Its first_token counts from the block's first token.
  ExtraKey key_of(BlockId id, std::size_t i) const noexcept;

  /// Returns the registered block with this content, or kNoBlock.
  BlockId find(const Hash128& hash, const PrefixContent& content) const noexcept;
  /// Returns the newest block behind the content's parent if it has this content, else kNoBlock.
  /// Requires a current parent that is not the beginning.
  BlockId find_newest(const PrefixContent& content) const noexcept {
    const BlockId id = first_child(content.parent.block());
    return id != kNoBlock && holds(id, content) ? id : kNoBlock;
  }
  /// Prepares the cache for find: first the table, then, once that has arrived, the record and the
  /// tokens.
  void prefetch_table(const Hash128& hash) const noexcept {
    __builtin_prefetch(&heads_[place_of(hash)]);
  }
  /// Returns the first block with this place in the table, or kNoBlock.
  BlockId prefetch_block(const Hash128& hash) const noexcept;
  /// The same for the second block, unless the first one has this hash or is the only one. Later.
  BlockId prefetch_candidate(const Hash128& hash) const noexcept;
  void prefetch_head(const Hash128& hash) const noexcept {
    const std::uint32_t head = heads_[place_of(hash)];
    if (head != 0) __builtin_prefetch(&blocks_[head - 1].next, 1);
  }
  /// The same for the record behind that.
  void prefetch_second(const Hash128& hash) const noexcept {
    const std::uint32_t head = heads_[place_of(hash)];
    const std::uint32_t second = head == 0 ? 0 : blocks_[head - 1].next;
    if (second != 0) __builtin_prefetch(&blocks_[second - 1].next, 1);
  }
  /// Prepares the cache for find_newest to return a block.
  void prefetch_found(BlockId id) const noexcept {
    const auto* const record = reinterpret_cast<const char*>(&block(id));
    __builtin_prefetch(record);
    __builtin_prefetch(record + sizeof(PrefixBlock) - 1);
    __builtin_prefetch(words(id));
  }
  /// Prepares the cache for insert or erase of a block: its record and its contents.
  void prefetch_record(BlockId id) const noexcept {
    const auto* const record = reinterpret_cast<const char*>(&block(id));
    __builtin_prefetch(record, 1);
    __builtin_prefetch(record + sizeof(PrefixBlock) - 1, 1);
  }
  /// The same for a change of its marks.
  void prefetch_marks(BlockId id) const noexcept { __builtin_prefetch(&block(id).marks, 1); }
  void prefetch_contents(BlockId id) const noexcept { __builtin_prefetch(words(id), 1); }
  /// Registers a block, which is not registered. `writer` is below 2^24. Its parent is current.
  void insert(BlockId id, Generation generation, const Hash128& hash, const PrefixContent& content,
              std::uint32_t writer) noexcept;
  /// The same, for a block without extra keys behind a parent that has no children, when so many
  /// blocks have been registered.
  void insert_last(BlockId id, Generation generation, const Hash128& hash,
                   const PrefixContent& content, std::uint32_t writer, std::uint32_t now) noexcept;
  /// Unregisters a registered block without children.
  void erase(BlockId id) noexcept;
  /// Returns the block in which a walk through what depends on `id` begins, children first: a
  /// descendant without children, or `id` itself.
  BlockId last_descendant(BlockId id) const noexcept;
  /// Whether the links of a registered block are those of the blocks that it names, and the table
  /// leads to it.
  bool links_agree(BlockId id) const noexcept;

 private:
  static std::size_t index(BlockId id) noexcept { return static_cast<std::size_t>(id.value); }
  static std::uint32_t link(BlockId id) noexcept {
    return static_cast<std::uint32_t>(id.value) + 1;
  }
  static BlockId linked(std::uint32_t link) noexcept {
    return BlockId(static_cast<std::int32_t>(link) - 1);
  }
  std::size_t place_of(const Hash128& hash) const noexcept { return hash.low & place_mask_; }
  const std::int32_t* words(BlockId id) const noexcept {
    return contents_.data() + index(id) * words_per_block_;
  }
  bool holds(BlockId id, const PrefixContent& content) const noexcept;
  bool has_keys(BlockId id, std::span<const ExtraKey> keys) const noexcept;
  /// What PrefixBlock::origin is for a block with this content.
  static std::uint64_t origin_of(const PrefixContent& content) noexcept {
    return content.parent.is_beginning() ? content.salt : content.parent.word();
  }
  /// The first token of a key that begins in a block, counted from that block's first token.
  std::int32_t place_in_block(const ExtraKey& key) const noexcept {
    return static_cast<std::int32_t>(key.first_token % static_cast<std::int64_t>(block_size_));
  }

  LazyArray<PrefixBlock> blocks_;
  LazyArray<std::uint32_t> heads_;    // first block at each place of the table
  LazyArray<std::int32_t> contents_;  // by block: its tokens, then its extra keys
  std::size_t block_size_;
  std::size_t words_per_block_;
  std::uint64_t place_mask_;
  std::uint64_t tag_mask_;  // the bits of a hash that are compared
  std::int64_t registered_ = 0;
};

inline void PrefixIndex::insert_last(BlockId id, Generation generation, const Hash128& hash,
                                     const PrefixContent& content, std::uint32_t writer,
                                     std::uint32_t now) noexcept {
  copy_tokens(content.tokens, contents_.data() + index(id) * words_per_block_, block_size_);
  std::uint32_t& head = heads_[place_of(hash)];
  PrefixBlock& b = block(id);
  b.hash = hash;
  b.origin = content.parent.word();
  b.generation = generation;
  ++b.registrations;
  b.next = head;
  b.first_child = b.next_sibling = b.previous_sibling = 0;
  b.marks = PrefixBlock::kRegistered | writer;
  b.last_use = now;
  head = block(content.parent.block()).first_child = link(id);
  ++registered_;
}

/// Compares everything that the hash stands for. The parent has been compared in the same way when
/// it was found.
inline bool PrefixIndex::holds(BlockId id, const PrefixContent& content) const noexcept {
  const PrefixBlock& b = block(id);
  if (is_first(id) != content.parent.is_beginning()) return false;
  if (b.origin != origin_of(content)) return false;
  if (!equal_tokens(content.tokens, words(id), block_size_)) return false;
  if (b.num_keys() != content.keys.size()) return false;
  return content.keys.empty() || has_keys(id, content.keys);
}

inline BlockId PrefixIndex::find(const Hash128& hash, const PrefixContent& content) const noexcept {
  for (std::uint32_t at = heads_[place_of(hash)]; at != 0; at = blocks_[at - 1].next) {
    if (((blocks_[at - 1].hash.low ^ hash.low) & tag_mask_) != 0) continue;
    if (holds(linked(at), content)) return linked(at);
  }
  return kNoBlock;
}

inline BlockId PrefixIndex::prefetch_block(const Hash128& hash) const noexcept {
  const BlockId head = linked(heads_[place_of(hash)]);
  if (head != kNoBlock) prefetch_found(head);
  return head;
}

/// The choice is made without a branch, because it looks random to a processor.
inline BlockId PrefixIndex::prefetch_candidate(const Hash128& hash) const noexcept {
  const std::uint32_t head = heads_[place_of(hash)];
  if (head == 0) return kNoBlock;
  const PrefixBlock& first = blocks_[head - 1];
  const bool is_other = ((first.hash.low ^ hash.low) & tag_mask_) != 0;
  const std::uint32_t next = first.next != 0 ? first.next : head;
  const BlockId candidate = linked(is_other ? next : head);
  prefetch_found(candidate);
  return candidate;
}

}  // namespace kvarena
