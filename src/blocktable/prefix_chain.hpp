#pragma once

/// @file
/// `PrefixChain`: what a prefix cache knows of a sequence. `PrefixHashRing`: the hashes of a query
/// whose blocks are looked for.

#include "blocktable/prefix_hash.hpp"
#include "blocktable/prefix_index.hpp"
#include "kvarena/blocktable/prefix.hpp"

#include <array>
#include <cstdint>
#include <limits>

namespace kvarena {

/// What the cache knows of a sequence.
struct PrefixChain {
  static constexpr std::int32_t kNoDoubt = std::numeric_limits<std::int32_t>::max();

  // What a decode step reads comes first.
  std::int32_t known = 0;      ///< tokens told; the last known % block_size are in the tail
  std::int32_t blocks = 0;     ///< leading blocks that are registered, here or as another's equals
  std::int32_t published = 0;  ///< of these, those before which nothing is left to publish
  std::int32_t num_keys = 0;   ///< extra keys of the sequence
  std::int32_t next_key = 0;   ///< the first that begins behind these blocks
  PrefixLink last;             ///< block number `blocks` - 1 of the prefix
  bool has_equals = false;     ///< whether the table may have equals of these blocks, to be shared
  std::int32_t account = 0;    ///< of its salt in SaltAccounts, plus 1; 0: none
  Hash128 chain;               ///< PrefixHash's, at the end of `blocks` blocks
  Hash128 root;                ///< the same, with the extra keys of these blocks
  std::uint64_t salt = 0;
  std::uint64_t salt_tag = 0;  ///< hash of the salt, for notes
  /// Tokens from this one on may be unwritten: none of them is known. Below the sequence's length,
  /// or kNoDoubt.
  std::int32_t doubt = kNoDoubt;
  PrefixMatch found;  ///< by the last adopt
};

/// The hashes of two batches of a query's blocks: that of block i is at place i % kSize.
struct PrefixHashRing {
  static constexpr std::size_t kSize = 2 * PrefixHash::kBatch;
  std::array<Hash128, kSize> chains;
  std::array<Hash128, kSize> roots;
  Hash128 hash(std::int64_t i) const noexcept { return chains[place(i)] ^ roots[place(i)]; }
  static std::size_t place(std::int64_t i) noexcept { return static_cast<std::size_t>(i) % kSize; }
};

}  // namespace kvarena
