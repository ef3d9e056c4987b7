#pragma once

/// @file
/// The prefix cache of a pool, as its other calls need it.

#include "capi/objects.hpp"

namespace kvarena::capi {

/// The refusal of a call because the pool has a prefix cache, or has none.
Status refused_prefix(Resource resource) noexcept;
/// Makes the prefix cache of a pool, if there is to be one.
Status create_prefix(const kvarena_pool_options& given, PoolObject& object);

}  // namespace kvarena::capi
