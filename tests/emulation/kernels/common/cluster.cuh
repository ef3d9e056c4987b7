#pragma once

/// @file
/// Clusters of emulated thread blocks: found in place of the header of the kernels. Shared memory
/// of other thread blocks is not emulated.

#include "emulation/intrinsics.hpp"

namespace kvarena::kernels {

inline int rank_in_cluster() { return static_cast<int>(blockIdx.x % clusterDim.x); }
inline void sync_cluster(const test::CallSite& site = test::CallSite::current()) {
  test::wait_emulated(test::EmulatedWait::cluster, site);
}

}  // namespace kvarena::kernels
