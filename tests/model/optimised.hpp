#pragma once

/// @file
/// Whether the build is optimised: long games are shorter where it is not.

namespace kvarena::test {

#ifdef NDEBUG
inline constexpr bool kOptimised = true;
#else
inline constexpr bool kOptimised = false;  ///< the library is some times slower
#endif

}  // namespace kvarena::test
