// Blocks, states and pages that sequences hold.

#include "kvarena/capacity/kv_memory.hpp"

#include "base/grouped.hpp"
#include "capacity/amount.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace kvarena::capacity {
namespace {

/// The tokens that a window keeps, with those behind it that may become its first ones again.
std::int64_t kept_of_window(const GroupMemory& group) noexcept {
  return plus(group.limit_tokens, group.paged.rollback_tokens);
}

/// The states of a sequence between steps.
std::int64_t kept_states(const GroupMemory& group, std::int64_t length_tokens) noexcept {
  return 1 + std::min<std::int64_t>(group.paged.rollback_tokens, length_tokens);
}

/// The most tokens between the beginning of the first block with a token that is kept and the last
/// token; kMostAmount where all are kept.
std::int64_t spanned_tokens(const GroupMemory& group) noexcept {
  const std::int64_t begun = group.block_size_tokens - 1;
  if (group.kind == CacheKind::window) return plus(kept_of_window(group), begun);
  if (group.kind != CacheKind::chunked) return kMostAmount;
  const bool is_whole = group.limit_tokens % group.block_size_tokens == 0;
  return is_whole ? group.limit_tokens : plus(group.limit_tokens, begun);
}

/// New tokens with which a sequence may begin one block more than between steps: in a step it has
/// the tokens that it had before, and the new ones. The first token of a chunk begins a block while
/// the chunk before it is still there.
std::int64_t first_begin(const GroupMemory& group) noexcept {
  if (group.kind == CacheKind::chunked) return 1;
  const std::int64_t block = group.block_size_tokens;
  const std::int64_t past = (spanned_tokens(group) - 1) % block + 1;  // of the last block
  return block - past + 1;
}

/// The states that a step writes beside those from before it: one for each of its tokens, but of a
/// sequence no more than it keeps.
std::int64_t written_states(const GroupMemory& group, std::int64_t sequences,
                            std::int64_t length_tokens, std::int64_t step_tokens) noexcept {
  return std::min(step_tokens, times(sequences, kept_states(group, length_tokens)));
}

/// The pages of states: those of what each sequence keeps, and those of what a step writes. A
/// sequence of the step has a token of it at least. Its states take no more pages than if it wrote
/// as many as it keeps, and k of them at most ceil(k * parts / m).
std::int64_t state_pages(const GroupMemory& group, const PagedBlocks& blocks,
                         std::int64_t sequences, std::int64_t length_tokens,
                         std::int64_t step_tokens) noexcept {
  const std::int64_t parts = blocks.num_parts;
  const std::int64_t m = blocks.blocks_per_page;
  const std::int64_t kept = kept_states(group, length_tokens);
  const std::int64_t between = pages_of_states(kept, parts, m);
  const std::int64_t in_step = pages_of_states(2 * kept, parts, m) - between;
  const std::int64_t active = std::min(sequences, step_tokens);
  const std::int64_t written = written_states(group, sequences, length_tokens, step_tokens);
  const std::int64_t shared = plus(times(written, parts), times(active, m - 1)) / m;
  return plus(times(sequences, between), std::min(times(active, in_step), shared));
}

/// The most blocks, or pages, that `step_tokens` new tokens begin when a sequence's first takes
/// `first` tokens, and each further one `further`, which is no less.
std::int64_t begun(std::int64_t sequences, std::int64_t step_tokens, std::int64_t first,
                   std::int64_t further) noexcept {
  const std::int64_t beginning = std::min(sequences, step_tokens / first);
  return beginning + (step_tokens - beginning * first) / further;
}

}  // namespace

std::int64_t units_at(const GroupMemory& group, std::int64_t length_tokens) noexcept {
  const std::int64_t block = group.block_size_tokens;
  if (block == 0) return kept_states(group, length_tokens);
  if (length_tokens == 0) return 0;
  std::int64_t first = 0;
  if (group.kind == CacheKind::window) {
    first = std::max<std::int64_t>(0, length_tokens - kept_of_window(group));
  } else if (group.kind == CacheKind::chunked) {
    first = (length_tokens - 1) / group.limit_tokens * group.limit_tokens;
  }
  return (length_tokens - 1) / block - first / block + 1;
}

std::int64_t peak_units(const GroupMemory& group, std::int64_t length_tokens) noexcept {
  const std::int64_t block = group.block_size_tokens;
  if (block == 0) return kept_states(group, length_tokens);
  return ceil_div(std::min(length_tokens, spanned_tokens(group)), block);
}

// A sequence of t new tokens spans t more than between steps. With `first` of them it may begin one
// block more, with each further block of them another: most blocks are begun by as many
// sequences as can have `first` each.
std::int64_t pool_units(const GroupMemory& group, std::int64_t sequences,
                        std::int64_t length_tokens, std::int64_t step_tokens) noexcept {
  const std::int64_t block = group.block_size_tokens;
  if (group.kind == CacheKind::recurrent) {
    return plus(times(sequences, kept_states(group, length_tokens)),
                written_states(group, sequences, length_tokens, step_tokens));
  }
  if (block == 0 || sequences == 0) return sequences;
  const std::int64_t all = times(sequences, ceil_div(length_tokens, block));
  const std::int64_t peaks = times(sequences, peak_units(group, length_tokens));
  return std::min(all, plus(peaks, begun(sequences, step_tokens, first_begin(group), block)));
}

// A page more takes the blocks that its last page has no room for, and each further page as many as
// a page has. Where tokens leave a window, the last page has (u + m - 2) % m blocks and one more.
std::int64_t pool_pages(const GroupMemory& group, const PagedBlocks& blocks, std::int64_t sequences,
                        std::int64_t length_tokens, std::int64_t step_tokens) noexcept {
  if (group.paged.kind == PagedKind::state) {
    return state_pages(group, blocks, sequences, length_tokens, step_tokens);
  }
  const std::int64_t each = pages_of(group.paged, blocks, length_tokens);
  const std::int64_t between = times(sequences, each);
  const bool is_windowed =
      group.paged.kind == PagedKind::window || group.paged.kind == PagedKind::chunk;
  if (!is_windowed || sequences == 0 || each == 0) return between;
  const std::int64_t per_page = blocks.blocks_per_page;
  const std::int64_t block = group.block_size_tokens;
  const std::int64_t used = peak_blocks(group.paged, length_tokens) + per_page - 2;
  const std::int64_t lacking = per_page - used % per_page;
  const std::int64_t first = plus(first_begin(group), times(lacking - 1, block));
  const std::int64_t turned =
      times(blocks.num_parts, begun(sequences, step_tokens, first, times(per_page, block)));
  const std::int64_t whole = ceil_div(ceil_div(length_tokens, block), per_page);
  const std::int64_t all = times(times(sequences, blocks.num_parts), whole);
  return std::max(between, std::min(all, plus(between, turned)));
}

std::int64_t bytes_at(std::span<const GroupMemory> groups, std::int64_t length_tokens) noexcept {
  std::int64_t sum = 0;
  for (const GroupMemory& g : groups) {
    sum = plus(sum, times(units_at(g, length_tokens), g.unit_bytes));
  }
  return sum;
}

std::int64_t peak_bytes(std::span<const GroupMemory> groups, std::int64_t length_tokens) noexcept {
  std::int64_t sum = 0;
  for (const GroupMemory& g : groups) {
    sum = plus(sum, times(peak_units(g, length_tokens), g.unit_bytes));
  }
  return sum;
}

std::string formula_of(const GroupMemory& group) {
  if (group.block_size_tokens == 0 && group.paged.rollback_tokens > 0) {
    return fmt::format("{} B x (1 + min(tokens, {}))", grouped(group.unit_bytes),
                       group.paged.rollback_tokens);
  }
  if (group.block_size_tokens == 0) {
    return fmt::format("{} B + 0 x tokens", grouped(group.unit_bytes));
  }
  const std::string token =
      grouped(plus(group.bytes_per_token, group.index_bytes_per_token)) + " B";
  if (group.kind == CacheKind::window) {
    return fmt::format("0 + {} x min(tokens, {})", token, grouped(kept_of_window(group)));
  }
  if (group.kind == CacheKind::chunked) {
    return fmt::format("0 + {} x (tokens in the current aligned chunk of {})", token,
                       grouped(group.limit_tokens));
  }
  return fmt::format("0 + {} x tokens", token);
}

}  // namespace kvarena::capacity
