#pragma once

/// @file
/// One part of a schedule, on one worker: walks its chunks of tokens, with the next chunk's rows
/// being prefetched through the block table while this one is computed, and leaves results or
/// partials.

#include "attention/schedule.hpp"
#include "kernels/params.h"

namespace kvarena::attention {

/// One layer's run, shared by all workers.
struct Run {
  const kernels::AttentionParams* params;  ///< validated
  Step step;                               ///< the order of work
  const WorkspaceMap* map;                 ///< of the plan
  std::byte* workspace;                    ///< of the plan
  const TileOps* key_ops;                  ///< for K's dtype
  const TileOps* value_ops;                ///< for V's dtype
  std::int32_t num_parts;                  ///< of the plan
};

/// Does the work of `part` with the scratch of `worker`.
void run_part(const Run& run, std::int32_t part, std::int32_t worker) noexcept;

}  // namespace kvarena::attention
