#pragma once

/// @file
/// `BitTree`: a set of small numbers that knows its smallest one. Each bit of a word says whether a
/// word of the level below has a bit, so every call looks at one word a level: 3 for 2^18 numbers.
/// Memory is committed when it is first used. Move-only; one thread at a time.

#include "base/lazy_array.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvarena {

/// A subset of 0 .. 2^18 - 1. It does not check its callers.
class BitTree {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};

  /// Makes an empty set of numbers below `size` <= 2^18. Throws std::bad_alloc.
  explicit BitTree(std::size_t size) : numbers_((size + 63) / 64), words_((size + 4095) / 4096) {}

  void insert(std::size_t number) noexcept {
    numbers_[number / 64] |= bit(number);
    words_[number / 4096] |= bit(number / 64);
    top_ |= bit(number / 4096);
  }
  void erase(std::size_t number) noexcept {
    if ((numbers_[number / 64] &= ~bit(number)) != 0) return;
    if ((words_[number / 4096] &= ~bit(number / 64)) != 0) return;
    top_ &= ~bit(number / 4096);
  }
  bool contains(std::size_t number) const noexcept {
    return (numbers_[number / 64] & bit(number)) != 0;
  }
  /// Returns the smallest number of the set, or kNone.
  std::size_t first() const noexcept {
    if (top_ == 0) return kNone;
    const std::size_t high = first_bit(top_);
    const std::size_t middle = high * 64 + first_bit(words_[high]);
    return middle * 64 + first_bit(numbers_[middle]);
  }
  /// Calls visit(number) for each number, ascending. O(the set and its words).
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::uint64_t high = top_; high != 0; high &= high - 1) {
      const std::size_t h = first_bit(high);
      for (std::uint64_t middle = words_[h]; middle != 0; middle &= middle - 1) {
        const std::size_t m = h * 64 + first_bit(middle);
        for (std::uint64_t low = numbers_[m]; low != 0; low &= low - 1) {
          visit(m * 64 + first_bit(low));
        }
      }
    }
  }

 private:
  static std::uint64_t bit(std::size_t number) noexcept { return std::uint64_t{1} << number % 64; }
  static std::size_t first_bit(std::uint64_t word) noexcept {
    return static_cast<std::size_t>(std::countr_zero(word));
  }

  LazyArray<std::uint64_t> numbers_;
  LazyArray<std::uint64_t> words_;
  std::uint64_t top_ = 0;
};

}  // namespace kvarena
