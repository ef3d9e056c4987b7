#pragma once

/// @file
/// What KvCache::create checks of its options itself; the parts below check the rest.

#include "kvarena/base/status.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <limits>

namespace kvarena {

/// A step's table entries at most.
inline constexpr std::int64_t kMaxTableEntries =
    std::int64_t{4} * std::numeric_limits<std::int32_t>::max();

/// `value` of `argument` lies within `smallest`..`largest`, or invalid_argument.
Status check_range(Resource argument, std::int64_t value, std::int64_t smallest,
                   std::int64_t largest) noexcept;

/// Fills in the defaults that need no pool, and refuses what no part below checks.
Status complete(KvCacheOptions& options) noexcept;

}  // namespace kvarena
