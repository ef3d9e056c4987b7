#pragma once

/// @file
/// Clusters of emulated thread blocks: found in place of the header of the kernels. Shared memory
/// of other thread blocks is not emulated.

#include "emulation/intrinsics.hpp"

namespace kvarena::kernels {

inline int rank_in_cluster() { return static_cast<int>(blockIdx.x % clusterDim.x); }
inline void sync_cluster() { test::wait_emulated(test::EmulatedWait::cluster, __func__); }

}  // namespace kvarena::kernels
