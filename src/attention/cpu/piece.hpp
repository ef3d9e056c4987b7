#pragma once

/// @file
/// The work of one part of a schedule, by one worker. The worker goes over the part's chunks of
/// tokens. While it computes a chunk, it prefetches the rows of the next chunk through the block
/// table. It leaves results or partial results.

#include "attention/schedule.hpp"
#include "kernels/params.h"

namespace kvarena::attention {

/// The run of one layer, shared by all workers.
struct Run {
  const kernels::AttentionParams* params;  ///< validated
  Step step;                               ///< the order of work
  const WorkspaceMap* map;                 ///< of the plan
  std::byte* workspace;                    ///< of the plan
  const TileOps* key_ops;                  ///< for K's dtype
  const TileOps* value_ops;                ///< for V's dtype
  std::int32_t num_parts;                  ///< of the plan
};

/// Does the work of `part` with the scratch memory of `worker`.
void run_part(const Run& run, std::int32_t part, std::int32_t worker) noexcept;

}  // namespace kvarena::attention
