#pragma once

/// @file
/// What K, V and Q of a token are: a pure function of the token's seed, the layer and the kind, so
/// that a test can make them again at any time without keeping them. Values lie in [-1, 1].

#include "base/half.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace kvarena::test {

/// Which of a token's vectors.
enum class Content : std::uint32_t { key, value, query };

/// A table of random elements of one dtype; a vector of a token is a stretch of it.
class TokenContent {
 public:
  TokenContent(DType dtype, std::uint64_t seed) : dtype_(dtype) {
    bytes_.resize(static_cast<std::size_t>(kElements * bytes_of(dtype)));
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
    for (std::int64_t i = 0; i < kElements; ++i)
      store_f32(bytes_.data(), dtype, i, uniform(random));
  }

  DType dtype() const noexcept { return dtype_; }
  /// Writes `count` elements, at most kMaxVector, to `out`.
  void write(std::uint32_t token_seed, std::int32_t layer, Content what, std::int64_t count,
             std::byte* out) const noexcept {
    const std::uint64_t start = mixed(token_seed, layer, what) % (kElements - kMaxVector);
    std::memcpy(out, bytes_.data() + start * static_cast<std::uint64_t>(bytes_of(dtype_)),
                static_cast<std::size_t>(count * bytes_of(dtype_)));
  }

  static constexpr std::int64_t kMaxVector = 1 << 14;  ///< elements of one vector

 private:
  static constexpr std::int64_t kElements = 1 << 17;

  static std::uint64_t mixed(std::uint32_t seed, std::int32_t layer, Content what) noexcept {
    std::uint64_t x = (std::uint64_t{seed} << 16) + (static_cast<std::uint64_t>(layer) << 2) +
                      static_cast<std::uint64_t>(what);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;  // splitmix64's finaliser
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }

  DType dtype_;
  std::vector<std::byte> bytes_;
};

}  // namespace kvarena::test
