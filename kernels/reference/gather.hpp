#pragma once

/// @file
/// Gather, scatter and conversion, element by element. The fast versions must equal them to the
/// bit.

#include "kernels/params.h"

#include "kvarena/base/export.hpp"

namespace kvarena::kernels::reference {

/// Reads tokens of a sequence into contiguous memory.
KVARENA_EXPORT void gather(const GatherParams& params);

/// Writes contiguous tokens into a sequence's blocks.
KVARENA_EXPORT void scatter(const ScatterParams& params);

/// Copies blocks into another pool. The pools may differ in tile order and type.
KVARENA_EXPORT void convert_blocks(const ConvertBlocksParams& params);

}  // namespace kvarena::kernels::reference
