#include "blocktable/prefix_index.hpp"

#include "blocktable/prefix_hash_bits.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvarena {
namespace {

/// A key's id, and its first token in the block.
constexpr std::size_t kWordsPerId = sizeof(std::uint64_t) / sizeof(std::int32_t);
constexpr std::size_t kWordsPerKey = kWordsPerId + 1;

int hash_bits = 64;

/// At most one place a block, so that the table costs at most 4 bytes a block.
std::size_t places(std::int64_t num_blocks) noexcept {
  return std::bit_floor(static_cast<std::size_t>(num_blocks));
}

}  // namespace

void set_prefix_hash_bits(int bits) noexcept { hash_bits = bits; }
int prefix_hash_bits() noexcept { return hash_bits; }

PrefixIndex::PrefixIndex(std::int64_t num_blocks, std::int64_t block_size,
                         std::int32_t max_extra_keys)
    : blocks_(static_cast<std::size_t>(num_blocks)),
      heads_(places(num_blocks)),
      contents_(static_cast<std::size_t>(num_blocks) *
                (static_cast<std::size_t>(block_size) +
                 kWordsPerKey * static_cast<std::size_t>(max_extra_keys))),
      block_size_(static_cast<std::size_t>(block_size)),
      words_per_block_(block_size_ + kWordsPerKey * static_cast<std::size_t>(max_extra_keys)),
      place_mask_(heads_.size() - 1),
      tag_mask_(~std::uint64_t{0} >> (64 - hash_bits)) {
  place_mask_ &= tag_mask_;
}

std::int64_t PrefixIndex::bytes(std::int64_t num_blocks, std::int64_t block_size,
                                std::int32_t max_extra_keys) noexcept {
  return num_blocks *
             (static_cast<std::int64_t>(sizeof(PrefixBlock)) +
              block_size * static_cast<std::int64_t>(sizeof(std::int32_t)) +
              max_extra_keys * static_cast<std::int64_t>(kWordsPerKey * sizeof(std::int32_t))) +
         static_cast<std::int64_t>(places(num_blocks) * sizeof(std::uint32_t));
}

ExtraKey PrefixIndex::key_of(BlockId id, std::size_t i) const noexcept {
  const std::int32_t* const its = words(id) + block_size_ + kWordsPerKey * i;
  ExtraKey key{.first_token = its[kWordsPerId]};
  std::memcpy(&key.key, its, sizeof(key.key));
  return key;
}

bool PrefixIndex::has_keys(BlockId id, std::span<const ExtraKey> keys) const noexcept {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const ExtraKey own = key_of(id, i);
    if (own.key != keys[i].key) return false;
    if (own.first_token != place_in_block(keys[i])) return false;
  }
  return true;
}

void PrefixIndex::insert(BlockId id, Generation generation, const Hash128& hash,
                         const PrefixContent& content, std::uint32_t writer) noexcept {
  PrefixBlock& b = block(id);
  const bool is_first_block = content.parent.is_beginning();
  std::int32_t* const own = contents_.data() + index(id) * words_per_block_;
  copy_tokens(content.tokens, own, block_size_);
  for (std::size_t i = 0; i < content.keys.size(); ++i) {
    std::int32_t* const its = own + block_size_ + kWordsPerKey * i;
    std::memcpy(its, &content.keys[i].key, sizeof(content.keys[i].key));
    its[kWordsPerId] = place_in_block(content.keys[i]);
  }
  b.hash = hash;
  b.generation = generation;
  ++b.registrations;
  b.marks = PrefixBlock::kRegistered | (is_first_block ? PrefixBlock::kFirst : 0) |
            static_cast<std::uint32_t>(content.keys.size()) << PrefixBlock::kKeysShift | writer;
  b.first_child = b.next_sibling = b.previous_sibling = 0;
  b.origin = origin_of(content);
  std::uint32_t& head = heads_[place_of(hash)];
  b.next = head;
  head = link(id);
  ++registered_;
  if (is_first_block) return;
  PrefixBlock& parent = block(content.parent.block());
  b.next_sibling = parent.first_child;
  if (b.next_sibling != 0) blocks_[b.next_sibling - 1].previous_sibling = link(id);
  parent.first_child = link(id);
}

void PrefixIndex::erase(BlockId id) noexcept {
  PrefixBlock& b = block(id);
  std::uint32_t* at = &heads_[place_of(b.hash)];
  while (*at != link(id)) at = &blocks_[*at - 1].next;
  *at = b.next;
  if (b.next_sibling != 0) blocks_[b.next_sibling - 1].previous_sibling = b.previous_sibling;
  if (b.previous_sibling != 0) {
    blocks_[b.previous_sibling - 1].next_sibling = b.next_sibling;
  } else if (!is_first(id)) {
    block(parent_of(id).block()).first_child = b.next_sibling;
  }
  b.marks = 0;
  --registered_;
}

BlockId PrefixIndex::last_descendant(BlockId id) const noexcept {
  while (block(id).first_child != 0) id = linked(block(id).first_child);
  return id;
}

/// A chain of the table that does not end within as many steps as there are blocks has a loop.
bool PrefixIndex::links_agree(BlockId id) const noexcept {
  const PrefixBlock& b = block(id);
  if (b.next_sibling != 0 && blocks_[b.next_sibling - 1].previous_sibling != link(id)) return false;
  const PrefixLink parent = parent_of(id);
  if (!is_current(parent)) return false;
  const std::uint32_t before = b.previous_sibling != 0
                                   ? blocks_[b.previous_sibling - 1].next_sibling
                               : is_first(id) ? link(id)
                                              : block(parent.block()).first_child;
  if (before != link(id)) return false;
  std::uint32_t at = heads_[place_of(b.hash)];
  for (std::int64_t steps = 0; at != 0 && steps <= registered_; ++steps) {
    if (at == link(id)) return true;
    at = blocks_[at - 1].next;
  }
  return false;
}

}  // namespace kvarena
