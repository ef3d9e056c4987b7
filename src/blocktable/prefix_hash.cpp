// xxhash is used as a header: all of it is compiled here, and nothing is linked.

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "blocktable/prefix_hash.hpp"

namespace kvarena {
namespace {

/// The first word of an input that is not a block's.
enum class Domain : std::uint64_t { salt = 1, keys = 2 };

constexpr std::size_t kUsualBytes = 16 * sizeof(std::int32_t);  // of the tokens of a block

Hash128 from(const XXH128_hash_t& hash) noexcept { return {hash.low64, hash.high64}; }

/// The hash of kBytes bytes.
template <std::size_t kBytes, class Secret>
[[gnu::always_inline, gnu::flatten]] inline Hash128 hash_of(const void* input,
                                                            const Secret& secret) noexcept {
  return from(XXH3_128bits_withSecret(input, kBytes, secret.data(), secret.size()));
}

}  // namespace

/// The secret has a fixed size, so this cannot fail.
PrefixHash::PrefixHash(const std::array<std::uint64_t, 2>& key) noexcept {
  static_cast<void>(XXH3_generateSecret(secret_.data(), secret_.size(), key.data(), sizeof(key)));
}

Hash128 PrefixHash::root_of(std::uint64_t salt) const noexcept {
  const std::array<std::uint64_t, 2> input = {static_cast<std::uint64_t>(Domain::salt), salt};
  return from(XXH3_128bits_withSecret(input.data(), sizeof(input), secret_.data(), secret_.size()));
}

Hash128 PrefixHash::root_with(const Hash128& root, std::span<const ExtraKey> keys) const noexcept {
  std::array<std::uint64_t, 4 + 2 * PrefixOptions::kMostExtraKeys> input{
      static_cast<std::uint64_t>(Domain::keys), keys.size(), root.low, root.high};
  std::size_t words = 4;
  for (const ExtraKey& key : keys) {
    input[words++] = key.key;
    input[words++] = static_cast<std::uint64_t>(key.first_token);
  }
  return from(XXH3_128bits_withSecret(input.data(), words * sizeof(std::uint64_t), secret_.data(),
                                      secret_.size()));
}

/// The hashes of the blocks' own tokens do not depend on each other, so the processor computes
/// several at once. The length of a usual block is a constant, so its hash needs no choice by
/// length.
void PrefixHash::extend(Hash128 chain, const std::int32_t* tokens, std::size_t block_size,
                        std::span<Hash128> chains) const noexcept {
  const std::size_t bytes = block_size * sizeof(std::int32_t);
  for (Hash128& after : chains) {
    const Hash128 own =
        bytes == kUsualBytes
            ? hash_of<kUsualBytes>(tokens, secret_)
            : from(XXH3_128bits_withSecret(tokens, bytes, secret_.data(), secret_.size()));
    const std::array<Hash128, 2> input = {chain, own};
    after = chain = hash_of<sizeof(input)>(input.data(), secret_);
    tokens += block_size;
  }
}

}  // namespace kvarena
