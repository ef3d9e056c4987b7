#pragma once

/// @file
/// Groups of layers that share an arena through equal pages. A page is free, or it is carved into
/// blocks of one group. `choose_pages` chooses the bytes of a page, and how groups are cut so that
/// their blocks fill pages well. `retained` is the range of tokens that a sequence keeps in a group
/// between steps, and `pages_of` is the number of pages that this needs. Everything that reserves,
/// plans or finds blocks of a group calls these functions, so that all of them agree.
///
/// Pure functions of their arguments, for any thread. They allocate nothing.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvarena {

/// The data that the layers of a group keep for a sequence.
enum class PagedKind : std::uint8_t {
  full,    ///< K and V, or a latent, of every token
  window,  ///< of the last `limit_tokens` tokens
  chunk,   ///< of the aligned chunk of `limit_tokens` tokens that has the last token
  state,   ///< one state of fixed size for each token that may be taken back, and one more
  cross,   ///< of the `limit_tokens` tokens of an encoder
};

/// Returns "full", "window", "chunk", "state" or "cross".
KVARENA_EXPORT std::string_view name_of(PagedKind kind) noexcept;

/// Layers that keep the same data, in blocks of all of these layers.
struct PagedGroup {
  PagedKind kind = PagedKind::full;     ///< the data that they keep
  std::int32_t num_layers = 0;          ///< 1 .. 4096
  std::int64_t layer_bytes = 0;         ///< bytes of one layer in a block, or of one layer's state,
                                        ///< with padding; 1 .. 2^40
  std::int32_t block_size_tokens = 16;  ///< 1 .. 65536; a state has no tokens
  std::int64_t limit_tokens = 0;     ///< window, chunk, cross: 1 .. 2^40; a chunk has whole blocks
  std::int32_t rollback_tokens = 0;  ///< window, state: tokens that can be taken back; 0 .. 65536
};

/// The blocks of one group in a pool of equal pages.
struct PagedBlocks {
  std::int32_t num_parts = 1;    ///< equal parts of whole layers. A part of attention has ids and
                                 ///< tables of its own; the parts of a state are blocks of one
                                 ///< group, and a state is `num_parts` of them
  std::int64_t block_bytes = 0;  ///< bytes of a block: of one part
  std::int32_t blocks_per_page = 1;  ///< page_bytes / block_bytes, rounded down
  std::int64_t id_stride_bytes = 0;  ///< bytes from a block id to the next: the largest that
                                     ///< divides a page and a block, or a page when it is one block
  /// Ids from the first block of a page to the first block of the next page.
  constexpr std::int64_t ids_per_page(std::int64_t page_bytes) const noexcept {
    return page_bytes / id_stride_bytes;
  }
  /// Ids from one block of a page to the next.
  constexpr std::int64_t ids_per_block() const noexcept {
    return blocks_per_page == 1 ? 1 : block_bytes / id_stride_bytes;
  }
};

/// A page size, and how the groups fill such pages.
struct PageChoice {
  static constexpr std::size_t kMaxGroups = 8;           ///< groups in a call
  static constexpr std::int32_t kMaxBlocksPerPage = 64;  ///< blocks that a page is carved into
  static constexpr std::int32_t kMaxParts = 4;           ///< parts of an attention group
  static constexpr std::int64_t kMaxPageBytes = std::int64_t{64} << 20;  ///< of several groups
  static constexpr std::int64_t kBlockAlignment = 1024;  ///< blocks of several groups are multiples

  std::int64_t page_bytes = 0;                   ///< bytes of a page
  std::array<PagedBlocks, kMaxGroups> groups{};  ///< in the order of the call
  std::size_t num_groups = 0;                    ///< used entries of `groups`
  /// The largest excess of a sequence's pages over the bytes of its blocks, in 1/10000.
  std::int64_t worst_excess = 0;
};

/// What a sequence keeps in a group between two steps.
struct Retained {
  std::int64_t first_token = 0;  ///< the oldest token that is kept; of a state, the shortest length
                                 ///< that can be had again
  std::int64_t end_token = 0;    ///< the token after the last
  std::int64_t first_block = 0;  ///< the block of first_token; of a state, 0
  std::int64_t end_block = 0;    ///< the block after the last

  /// The number of blocks. Blocks of a state are whole states.
  constexpr std::int64_t num_blocks() const noexcept { return end_block - first_block; }
  friend bool operator==(const Retained&, const Retained&) = default;
};

/// Returns ok, or invalid_argument with the member, its value and its range, or (block_bytes) when
/// the layers of a block have more than 2^40 bytes. A limit or tokens to take back of a kind that
/// has none are refused too. For a chunk that has not whole blocks, the range is from the nearest
/// smaller to the nearest larger one that has.
KVARENA_EXPORT Status validate(const PagedGroup& group) noexcept;

/// Chooses the page of a pool for these groups. It tries up to kMaxParts equal parts of whole
/// layers for each attention group, all equal parts for states, and 1 to kMaxBlocksPerPage times
/// each part's block up to kMaxPageBytes as page. It takes the choice with the smallest excess of
/// pages over blocks, rounded to 1/10000: the worst of sequences of 512, 1024, 2048 .. tokens and
/// of `max_sequence_tokens`. Among equals it takes the fewest parts, then the smallest page. The
/// page of a single group is its block, whatever its size.
///
/// Returns what validate returns for a group, invalid_argument (num_groups) unless there are 1 ..
/// kMaxGroups groups, invalid_argument (max_sequence_tokens) below 1, and invalid_argument
/// (block_bytes) with the smallest block of the group whose block is largest, and the largest that
/// fits, when there is no such page.
KVARENA_EXPORT Result<PageChoice> choose_pages(std::span<const PagedGroup> groups,
                                               std::int64_t max_sequence_tokens) noexcept;

/// Returns what a sequence of `length_tokens` >= 0 keeps between steps. Requires a valid group.
KVARENA_EXPORT Retained retained(const PagedGroup& group, std::int64_t length_tokens) noexcept;

/// Returns the first_token of `retained` alone.
KVARENA_EXPORT std::int64_t oldest_retained(const PagedGroup& group,
                                            std::int64_t length_tokens) noexcept;

/// Returns the oldest token whose block a sequence must have to go on at `length_tokens` >= 0: the
/// oldest that the next token reads, or the last one if that is older. A chunk needs the whole
/// chunk of the last token. Requires a valid group that is not of states.
KVARENA_EXPORT std::int64_t oldest_needed(const PagedGroup& group,
                                          std::int64_t length_tokens) noexcept;

/// Returns the longest length <= `length_tokens` at which a sequence can go on that has the blocks
/// of all tokens from `first_held_token` on: `length_tokens`, or 0, when it needs older ones.
/// Requires a valid group that is not of states.
KVARENA_EXPORT std::int64_t restorable_length(const PagedGroup& group,
                                              std::int64_t first_held_token,
                                              std::int64_t length_tokens) noexcept;

/// Returns the most blocks that a sequence keeps between steps while it grows to `length_tokens`
/// >= 0. A window can need a block more on the way than at the end. Requires a valid group.
KVARENA_EXPORT std::int64_t peak_blocks(const PagedGroup& group,
                                        std::int64_t length_tokens) noexcept;

/// Returns the most pages that `num_blocks` >= 0 blocks of one sequence touch, when it fills pages
/// of its own one after the other. Blocks of a window or a chunk end and begin anywhere in a page.
KVARENA_EXPORT std::int64_t pages_of(PagedKind kind, std::int64_t num_blocks,
                                     std::int64_t blocks_per_page) noexcept;

/// Returns the most pages in which a sequence has `num_states` >= 0 states of `num_parts` blocks
/// each. States go in the order in which they came. Their checkpoints stay in the same pages.
KVARENA_EXPORT std::int64_t pages_of_states(std::int64_t num_states, std::int64_t num_parts,
                                            std::int64_t blocks_per_page) noexcept;

/// Returns the pages that all parts of a group need for a sequence that grows to `length_tokens`,
/// between steps. A pool with the sum over all groups for each of its sequences, and the pages of a
/// step, refuses none of them: in a step a sequence takes blocks before it gives others back.
/// `pool_pages` (kvarena/capacity/kv_memory.hpp) counts both.
KVARENA_EXPORT std::int64_t pages_of(const PagedGroup& group, const PagedBlocks& blocks,
                                     std::int64_t length_tokens) noexcept;

}  // namespace kvarena
