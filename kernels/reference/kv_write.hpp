#pragma once

/// @file
/// Append by slot mapping, block copies and scrubbing, element by element. The fast versions must
/// equal them to the bit. The host device uses this scrub.

#include "kernels/params.h"

#include "kvarena/base/export.hpp"

namespace kvarena::kernels::reference {

/// Writes K and V of each token to its slot.
KVARENA_EXPORT void append(const AppendParams& params);

/// Copies each block's bytes in this region.
KVARENA_EXPORT void copy_blocks(const CopyBlocksParams& params);

/// Scrubs the blocks in the order of the list, in all layers. Entries are not checked.
KVARENA_EXPORT void scrub(const ScrubParams& params);

}  // namespace kvarena::kernels::reference
