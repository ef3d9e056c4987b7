#include "blocktable/prefix_history.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <utility>

namespace kvarena::test {
namespace {

// A list of the newest notes, searched from its end.
TEST(PrefixHistoryTest, RemembersTheNewestNotesAndNoOthers) {
  for (const std::int64_t capacity : {1, 2, 7, 64}) {
    PrefixHistory history(capacity);
    std::deque<std::pair<std::uint64_t, std::uint64_t>> naive;
    std::mt19937_64 random(static_cast<std::uint64_t>(capacity));
    for (std::uint64_t fact = 0; fact < 5000; ++fact) {
      const std::uint64_t hash = random() % 40 * 64;  // few places, many equal
      history.add(hash, fact);
      naive.emplace_back(hash, fact);
      if (std::ssize(naive) > capacity) naive.pop_front();
      const std::uint64_t asked = random() % 40 * 64;
      const PrefixHistory::Note* note = history.find(asked);
      const auto expected = std::find_if(naive.rbegin(), naive.rend(),
                                         [&](const auto& its) { return its.first == asked; });
      ASSERT_EQ(note != nullptr, expected != naive.rend());
      if (note != nullptr) {
        ASSERT_EQ(note->fact, expected->second);
      }
    }
  }
}

}  // namespace
}  // namespace kvarena::test
