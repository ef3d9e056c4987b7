#pragma once

/// @file
/// What attention is, in plain loops with double accumulators: the measure of every other kernel.
/// Two passes over the logits, no tiling, no online softmax. Allocates; for tests and verification.

#include "kernels/params.h"

#include "kvarena/base/export.hpp"

namespace kvarena::kernels::reference {

/// One sequence, K and V contiguous. Writes out and, when asked, lse.
KVARENA_EXPORT void attention_contiguous(const ContiguousAttentionParams& params);

/// A batch through its block tables. Writes out and, when asked, lse.
KVARENA_EXPORT void attention_paged(const AttentionParams& params);

/// As attention_paged, with the outputs as doubles before any rounding: [total_q, num_q_heads,
/// head_dim_v] to `exact`. `params.out` is not used.
KVARENA_EXPORT void attention_paged_exact(const AttentionParams& params, double* exact);

}  // namespace kvarena::kernels::reference
