#pragma once

/// @file
/// Append by slot mapping and block copies, element by element: what the fast versions must equal
/// to the bit.

#include "kernels/params.h"

#include "kvarena/base/export.hpp"

namespace kvarena::kernels::reference {

/// Writes K and V of each token to its slot.
KVARENA_EXPORT void append(const AppendParams& params);

/// Copies each block's bytes in this region.
KVARENA_EXPORT void copy_blocks(const CopyBlocksParams& params);

}  // namespace kvarena::kernels::reference
