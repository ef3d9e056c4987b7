#pragma once

/// @file
/// The checks of options that KvCache::create makes itself. The parts of the cache check the other
/// options.

#include "kvarena/base/status.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <limits>

namespace kvarena {

/// The most table entries of a step.
inline constexpr std::int64_t kMaxTableEntries =
    std::int64_t{4} * std::numeric_limits<std::int32_t>::max();

/// Returns ok when `value` of `argument` lies within `smallest`..`largest`, else invalid_argument.
Status check_range(Resource argument, std::int64_t value, std::int64_t smallest,
                   std::int64_t largest) noexcept;

/// Fills in the defaults that do not depend on the pool, and refuses values that no part of the
/// cache checks.
Status complete(KvCacheOptions& options) noexcept;

}  // namespace kvarena
