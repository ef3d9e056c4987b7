// What a sequence keeps in a group of layers, and in how many blocks and pages.

#include "kvarena/base/choose_pages.hpp"

#include <algorithm>

namespace kvarena {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace

std::int64_t oldest_retained(const PagedGroup& group, std::int64_t length_tokens) noexcept {
  switch (group.kind) {
    case PagedKind::window:
      return std::max<std::int64_t>(0, length_tokens - group.limit_tokens - group.rollback_tokens);
    case PagedKind::chunk:
      return length_tokens == 0 ? 0 : (length_tokens - 1) / group.limit_tokens * group.limit_tokens;
    case PagedKind::state: return std::max<std::int64_t>(0, length_tokens - group.rollback_tokens);
    case PagedKind::full:
    case PagedKind::cross: break;
  }
  return 0;
}

Retained retained(const PagedGroup& group, std::int64_t length_tokens) noexcept {
  Retained r{.first_token = oldest_retained(group, length_tokens), .end_token = length_tokens};
  if (group.kind == PagedKind::state) {
    r.end_block = 1 + group.rollback_tokens;
    return r;
  }
  if (group.kind == PagedKind::cross) r.end_token = group.limit_tokens;
  r.first_block = r.first_token / group.block_size_tokens;
  r.end_block = ceil_div(r.end_token, group.block_size_tokens);
  return r;
}

// The next token of a window reads limit_tokens - 1 older ones. The block of the last token gets
// the next one, unless it is full.
std::int64_t oldest_needed(const PagedGroup& group, std::int64_t length_tokens) noexcept {
  if (length_tokens == 0) return 0;
  switch (group.kind) {
    case PagedKind::window:
      return std::max<std::int64_t>(
          0, length_tokens - std::max<std::int64_t>(1, group.limit_tokens - 1));
    case PagedKind::chunk: return (length_tokens - 1) / group.limit_tokens * group.limit_tokens;
    case PagedKind::full:
    case PagedKind::state:
    case PagedKind::cross: break;
  }
  return 0;
}

std::int64_t restorable_length(const PagedGroup& group, std::int64_t first_held_token,
                               std::int64_t length_tokens) noexcept {
  return first_held_token <= oldest_needed(group, length_tokens) || first_held_token == 0
             ? length_tokens
             : 0;
}

// A window begins anywhere in its first block, so it spans up to block_size - 1 tokens more.
std::int64_t peak_blocks(const PagedGroup& group, std::int64_t length_tokens) noexcept {
  const std::int64_t block = group.block_size_tokens;
  switch (group.kind) {
    case PagedKind::window:
      return ceil_div(
          std::min(length_tokens, group.limit_tokens + group.rollback_tokens + block - 1), block);
    case PagedKind::chunk: return ceil_div(std::min(length_tokens, group.limit_tokens), block);
    case PagedKind::full:
    case PagedKind::state:
    case PagedKind::cross: break;
  }
  return retained(group, length_tokens).num_blocks();
}

// All pages but the last are full, because the sequence fills one before it takes the next. Where
// blocks also leave in that order, the first page is another that is not full: with its last block
// alone, the other blocks fill (num_blocks - 1) / blocks_per_page pages, rounded up.
std::int64_t pages_of(PagedKind kind, std::int64_t num_blocks,
                      std::int64_t blocks_per_page) noexcept {
  if (num_blocks == 0) return 0;
  if (kind == PagedKind::window || kind == PagedKind::chunk) {
    return (num_blocks + blocks_per_page - 2) / blocks_per_page + 1;
  }
  return ceil_div(num_blocks, blocks_per_page);
}

// Checkpoints stay in the page of the states after them, so states go like the blocks of a window.
std::int64_t pages_of_states(std::int64_t num_states, std::int64_t num_parts,
                             std::int64_t blocks_per_page) noexcept {
  if (num_parts % blocks_per_page == 0) return num_states * (num_parts / blocks_per_page);
  const std::int64_t whole = blocks_per_page % num_parts == 0 ? num_parts : 1;
  return pages_of(PagedKind::window, num_states * num_parts / whole, blocks_per_page / whole);
}

}  // namespace kvarena
