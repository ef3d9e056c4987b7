#pragma once

/// @file
/// `PrefixHash`: the keyed hashes of the prefix cache, of xxhash's 128-bit XXH3 with a secret made
/// from the key. The content of a block is {salt, extra keys up to it, tokens up to its end}. Its
/// hash is a function of two parts:
///
/// - its chain: hash of {chain of the block before, hash of its block_size tokens}
/// - its root: hash of the salt, and then, for each block in which extra keys begin, hash of {root,
///   keys with their first tokens}
///
/// Each input has one meaning: the tokens of a block and the pair have fixed lengths, and the other
/// two begin with a number of their own and the number of keys. The hash of the block is the
/// exclusive or of chain and root, two independent keyed hashes. So the chain can be had back from
/// a block's hash and its root.
///
/// The hash only finds candidates. Whoever finds one compares the contents.

#include "kvarena/blocktable/prefix.hpp"

#include <array>
#include <cstdint>
#include <span>

namespace kvarena {

/// 128 bits of a hash.
struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
  friend Hash128 operator^(const Hash128& a, const Hash128& b) noexcept {
    return {a.low ^ b.low, a.high ^ b.high};
  }
};

/// The hashes under one key. Immutable.
class PrefixHash {
 public:
  explicit PrefixHash(const std::array<std::uint64_t, 2>& key) noexcept;

  /// The root of a salt.
  Hash128 root_of(std::uint64_t salt) const noexcept;
  /// The root behind a block in which these extra keys begin. Requires at least one.
  Hash128 root_with(const Hash128& root, std::span<const ExtraKey> keys) const noexcept;
  /// Extends a chain by whole blocks, one for each element of `chains`, which receives the chain at
  /// the end of each block. Many blocks in a call take less time than one in each of many calls.
  void extend(Hash128 chain, const std::int32_t* tokens, std::size_t block_size,
              std::span<Hash128> chains) const noexcept;
  static constexpr std::size_t kBatch = 16;  ///< blocks that the cache hashes in a call

 private:
  static constexpr std::size_t kSecretBytes = 192;
  std::array<unsigned char, kSecretBytes> secret_{};
};

}  // namespace kvarena
