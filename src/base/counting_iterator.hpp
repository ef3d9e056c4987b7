#pragma once

/// @file
/// `CountingIterator`: an iterator over characters in memory that notes how far its reader has
/// come, so that an error can name the place of a defect.

#include <cstddef>
#include <iterator>

namespace kvarena {

/// An input iterator. Copies share `seen`, which must outlive them.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;     ///< the next character
  const char** seen;  ///< the iterator sets it to the furthest `at`

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
