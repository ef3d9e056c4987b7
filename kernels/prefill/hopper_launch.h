#pragma once

/// @file
/// What the host computes for a launch of the Hopper kernel of prefill.h.

#include "kernels/common/divisor.h"
#include "kernels/params.h"

namespace kvarena::kernels {

/// The figures of a launch.
struct HopperLaunch {
  Divisor group;            ///< query heads of a KV head
  Divisor tiles_per_block;  ///< 16-token tiles of a block
  float scale_log2;         ///< of a logit in base 2
  float cap_log2;           ///< the soft cap in base 2
  float cap_slope;          ///< of a dot product in the exponent of tanh: 2 log2(e) scale / cap
};

}  // namespace kvarena::kernels
