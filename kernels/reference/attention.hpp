#pragma once

/// @file
/// The definition of attention, in plain loops with double accumulators. Every other kernel is
/// compared with it. It makes two passes over the logits, without tiling and without online
/// softmax. It allocates; it is for tests and verification.

#include "kernels/params.h"

#include "kvarena/base/export.hpp"

namespace kvarena::kernels::reference {

/// Computes one sequence with contiguous K and V. Writes out, and lse unless it is null.
KVARENA_EXPORT void attention_contiguous(const ContiguousAttentionParams& params);

/// Computes a batch through its block tables. Writes out, and lse unless it is null.
KVARENA_EXPORT void attention_paged(const AttentionParams& params);

/// Does the same as attention_paged, and writes the outputs as doubles before any rounding to
/// `exact`: [total_q, num_q_heads, head_dim_v]. `params.out` is not used.
KVARENA_EXPORT void attention_paged_exact(const AttentionParams& params, double* exact);

}  // namespace kvarena::kernels::reference
