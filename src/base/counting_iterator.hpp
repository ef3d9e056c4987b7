#pragma once

/// @file
/// `CountingIterator`: characters in memory, with a note of how far their reader has come, so that
/// a defect has a place.

#include <cstddef>
#include <iterator>

namespace kvarena {

/// An input iterator; copies share `seen`, which outlives them.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;     ///< the next character
  const char** seen;  ///< is set to the furthest `at`

  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    *seen = ++at;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at == b.at;
  }
  friend bool operator!=(const CountingIterator& a, const CountingIterator& b) {
    return a.at != b.at;
  }
};

}  // namespace kvarena
