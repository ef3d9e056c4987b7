#pragma once

/// @file
/// Gather, scatter and conversion, element by element: what the fast versions must equal to the
/// bit.

#include "kernels/params.h"

#include "kvarena/base/export.hpp"

namespace kvarena::kernels::reference {

/// Reads tokens of a sequence into contiguous memory.
KVARENA_EXPORT void gather(const GatherParams& params);

/// Writes them back.
KVARENA_EXPORT void scatter(const ScatterParams& params);

/// Copies blocks into another pool, whatever the orders and types of both.
KVARENA_EXPORT void convert_blocks(const ConvertBlocksParams& params);

}  // namespace kvarena::kernels::reference
