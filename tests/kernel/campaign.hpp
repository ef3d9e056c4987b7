#pragma once

/// @file
/// Many attention problems in a row: the reference works on all cores while the GPU works on
/// problems that are ready.

#include "kernel/attention_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace kvarena::test {

/// Calls `use(problem)` for the problem of each case, in order; stops at the first failure.
template <class Use>
void for_each_problem(const std::vector<AttentionCase>& cases, Use&& use) {
  const std::size_t ahead = 2 * std::max(1U, std::thread::hardware_concurrency());
  std::deque<std::future<std::unique_ptr<AttentionProblem>>> ready;
  std::size_t next = 0;
  while ((next < cases.size() || !ready.empty()) && !::testing::Test::HasFailure()) {
    for (; next < cases.size() && ready.size() < ahead; ++next) {
      ready.push_back(std::async(std::launch::async, [&c = cases[next]] {
        return std::make_unique<AttentionProblem>(c);
      }));
    }
    const std::unique_ptr<AttentionProblem> problem = ready.front().get();
    ready.pop_front();
    use(*problem);
  }
}

/// Random numbers for cases; the same for the same seed on every machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  /// low .. high.
  std::int32_t between(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  /// True once in `times`.
  bool once_in(std::int32_t times) { return between(1, times) == 1; }
  /// One of the list.
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return *(list.begin() + between(0, static_cast<std::int32_t>(list.size()) - 1));
  }
  /// A length of a sequence: the edges of a block as often as any, a long one now and then.
  std::int32_t length(std::int32_t block_size, std::int32_t longest) {
    if (once_in(3)) return one_of({0, 1, block_size - 1, block_size, block_size + 1});
    return once_in(6) ? between(0, longest) : between(0, 90);
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace kvarena::test
