#pragma once

/// @file
/// The rows of `kvarena bench attention --prefill`, `--columns` and `--shared-prefix`: batches
/// whose time the matrix units decide, and batches whose rows read the same blocks. Names are
/// unique.

#include "tools/attention_meter/attention_problem.hpp"

#include <vector>

namespace kvarena::meter {

/// Prompts, prompts behind cached tokens (beside prompts of as much work), fp8 K and V (beside
/// bf16), a window, a soft cap, and prompts with decode rows in one batch (beside two batches).
std::vector<AttentionProblem> prefill_rows();
/// Sequences with 9 query columns or more, and batches of many short sequences.
std::vector<AttentionProblem> columns_rows();
/// Decode and drafts over latents (MLA) of 576 elements: 16 to 128 query heads. bf16, and
/// latent_fp8.
std::vector<AttentionProblem> latent_rows();
/// Decode with windows and chunks, and with V of fewer dims than K, as models have them.
std::vector<AttentionProblem> kinds_rows();
/// Batches whose sequences begin with the same blocks, beside attention that is not told so.
std::vector<AttentionProblem> shared_prefix_rows();

/// `problem`, beside what its speed is compared with: prompts of as much work for sequences with
/// more than kMostColumns query columns and older tokens; for shared blocks the same batch without
/// `reads_shared`.
AttentionProblem with_comparison(AttentionProblem problem);
/// `problem` with results that do not depend on the batch, beside the same one without this.
AttentionProblem batch_invariant(AttentionProblem problem);

inline constexpr std::int64_t kMostColumns = 128;  ///< that are read as a decode, not as a prompt

}  // namespace kvarena::meter
