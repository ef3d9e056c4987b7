#pragma once

/// @file
/// Pools, and what must live as long.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core.hpp"

namespace kvarena::python {

using Ids = std::vector<std::int32_t>;
using Generations = std::vector<std::uint32_t>;

/// A handle of a pool.
struct Pool {
  kvarena_pool* open = nullptr;  ///< null: closed
  nb::object log;                ///< receives operations; None or null: no one
  nb::object events;             ///< receives events of the prefix cache; the same
  std::int64_t num_blocks = 0;
  std::int32_t block_size = 16;  ///< tokens

  /// Who dropped the pool without close may be half gone, too: the functions hear nothing more.
  ~Pool() {
    log.reset();
    events.reset();
    kvarena_pool_release(open);
  }
  /// Returns the handle. Raises kvarena.FailedPrecondition after close.
  kvarena_pool* handle() const {
    if (open == nullptr) raise_closed("the pool is closed");
    return open;
  }
  Witness witness() const { return {.pool = open}; }
  void check(const kvarena_status& status) const { python::check(status, witness()); }
  /// Returns the room for `count` ids. A call that wants more blocks than there are fails before it
  /// writes one.
  std::size_t room(std::size_t count) const {
    return std::min(count, static_cast<std::size_t>(num_blocks));
  }
};

/// The prefix cache that a pool is to have.
struct PrefixLimits {
  bool prefix_cache;
  std::int32_t block_size;
  std::int32_t duplicates;
  std::int32_t extra_keys;
  std::int64_t history;
  std::uint64_t key_low;
  std::uint64_t key_high;
  std::int64_t ghost_blocks;

  void put_in(kvarena_pool_options& options) const noexcept {
    options.prefix_cache = prefix_cache ? 1 : 0;
    options.block_size_tokens = block_size;
    options.prefix_duplicates = duplicates;
    options.prefix_extra_keys = extra_keys;
    options.prefix_history = history;
    options.prefix_key_low = key_low;
    options.prefix_key_high = key_high;
    options.prefix_ghost_blocks = ghost_blocks;
  }
};

/// Raises ValueError unless there are as many generations as blocks.
inline void require_pairs(const Ids& blocks, const Generations& generations) {
  if (blocks.size() == generations.size()) return;
  raise_value("generations", std::to_string(generations.size()) + " entries",
              std::to_string(blocks.size()) + " entries, as `blocks` has");
}

/// Adds the calls of a pool with a prefix cache.
void bind_pool_prefixes(nb::module_& module, nb::class_<Pool>& pool);

}  // namespace kvarena::python
