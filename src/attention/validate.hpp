#pragma once

/// @file
/// The checks of attention's arguments by what they cost, for plan and run to combine. Each returns
/// ok or the first thing that is wrong, numbered; nothing is written anywhere.

#include "attention/checks.hpp"
#include "attention/step.hpp"
#include "kvarena/attention/attention.hpp"

namespace kvarena::attention {

/// Query tokens of the batch: the end of the last row's.
std::int64_t total_q(const AttentionArgs& args) noexcept;

/// Everything but Q, out and the rows' own numbers. O(1).
Status check_shape(const AttentionArgs& args) noexcept;
/// check_shape but for the layer's types and tile order, which devices differ in. O(1).
Status check_numbers(const AttentionArgs& args) noexcept;
/// Q and out of so many query tokens. O(1).
Status check_q_and_out(const AttentionArgs& args, std::int64_t num_q_tokens) noexcept;
/// Lengths, blocks and query tokens of every row; needs check_shape. O(num_rows).
Status check_rows(const AttentionArgs& args) noexcept;
/// The limits themselves. O(1).
Status check_limits(const AttentionLimits& limits) noexcept;
/// The heads and dims of `args` are those the workspace was laid out for. O(1).
Status check_same_shape(const AttentionArgs& args, const AttentionLimits& limits) noexcept;

}  // namespace kvarena::attention
