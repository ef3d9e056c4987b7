#pragma once

/// @file
/// For tests alone: a fault that the prefix caches made from now on have. Tests that judge by
/// effects must see it.

#include <cstdint>

namespace kvarena {

/// What is wrong.
enum class PrefixFault : std::uint8_t {
  none,
  publishes_at_registration,  ///< a block is found before anything has written it
  drops_salts,                ///< all tenants are one
  compares_stale_tokens,  ///< PrefixPool: a block that is registered again keeps its former tokens
  misses_evictions,       ///< PrefixPool: a block that others have taken is found as before
};

/// Not safe while another thread makes tables.
void set_prefix_fault(PrefixFault fault) noexcept;
PrefixFault prefix_fault() noexcept;

}  // namespace kvarena
