#pragma once

/// @file
/// Copies and compares the tokens of a block, 64 bytes at a time: a block of the usual size is one
/// step, without a call.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvarena {

inline constexpr std::size_t kTokensPerStep = 16;

/// Whether two blocks have the same tokens.
inline bool equal_tokens(const std::int32_t* a, const std::int32_t* b, std::size_t count) noexcept {
  using Words = std::int64_t __attribute__((vector_size(16)));
  std::size_t i = 0;
  for (; i + kTokensPerStep <= count; i += kTokensPerStep) {
    Words difference{};
    for (std::size_t k = i; k < i + kTokensPerStep; k += sizeof(Words) / sizeof(*a)) {
      Words of_a;
      Words of_b;
      std::memcpy(&of_a, a + k, sizeof(Words));
      std::memcpy(&of_b, b + k, sizeof(Words));
      difference |= of_a ^ of_b;
    }
    if ((difference[0] | difference[1]) != 0) return false;
  }
  while (i < count && a[i] == b[i]) ++i;
  return i == count;
}

/// Copies the tokens of a block.
inline void copy_tokens(const std::int32_t* from, std::int32_t* to, std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + kTokensPerStep <= count; i += kTokensPerStep) {
    std::memcpy(to + i, from + i, kTokensPerStep * sizeof(*to));
  }
  for (; i < count; ++i) to[i] = from[i];
}

}  // namespace kvarena
