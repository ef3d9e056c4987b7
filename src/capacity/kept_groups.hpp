#pragma once

/// @file
/// The groups of a model's layers as one stage keeps them. Pure functions.

#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <vector>

namespace kvarena::capacity {

/// Returns the groups that have layers on the stage, with those layers. Windows that are kept whole
/// are full attention, and groups that keep alike are one.
std::vector<CacheGroup> kept_groups(const ModelSpec& model, const KvMemoryOptions& options);

}  // namespace kvarena::capacity
