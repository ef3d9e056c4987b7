#pragma once

/// @file
/// The part of monitors that caches know.

namespace kvarena::capi {

struct CacheObject;

/// Makes every monitor stop watching a cache that ends.
void end_watches(CacheObject& cache) noexcept;

}  // namespace kvarena::capi
