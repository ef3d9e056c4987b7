#pragma once

/// @file
/// Checks of attention's arguments, grouped by cost, so that plan and run can combine them. Each
/// returns ok or the first error with its number. Nothing is written.

#include "attention/checks.hpp"
#include "attention/step.hpp"
#include "kvarena/attention/attention.hpp"

#include <cstdint>

namespace kvarena::attention {

/// The most query tokens of a row with a draft tree: bits of a word of AttentionArgs::tree_mask.
inline constexpr std::int32_t kMaxTreeTokens = 64;

/// Returns the query tokens of the batch: the end of the last row.
std::int64_t total_q(const AttentionArgs& args) noexcept;

/// Checks everything except Q, out and the numbers of the rows. O(1).
Status check_shape(const AttentionArgs& args) noexcept;
/// Does the same as check_shape, without the layer's types and tile order, in which devices differ.
/// O(1).
Status check_numbers(const AttentionArgs& args) noexcept;
/// Refuses chunks and rows of an encoder, which the kernels of a GPU do not know. O(1).
inline Status check_causal(const AttentionArgs& args) noexcept {
  if (args.chunk_tokens != 0) {
    return with(Check::chunk,
                unsupported(Resource::window, static_cast<std::uint64_t>(args.chunk_tokens)));
  }
  return args.sees_all ? with(Check::sees_all, unsupported(Resource::window)) : Status{};
}
/// Checks Q and out for `num_q_tokens` query tokens. O(1).
Status check_q_and_out(const AttentionArgs& args, std::int64_t num_q_tokens) noexcept;
/// Checks lengths, blocks and query tokens of every row. Requires that check_shape is ok.
/// O(num_rows).
Status check_rows(const AttentionArgs& args) noexcept;
/// Checks the limits themselves. O(1).
Status check_limits(const AttentionLimits& limits) noexcept;
/// Checks that `args` has the heads and dims for which the workspace was made. O(1).
Status check_same_shape(const AttentionArgs& args, const AttentionLimits& limits) noexcept;

}  // namespace kvarena::attention
