#include "effects/shrink.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace kvarena::test {
namespace {

/// A failing program that becomes smaller.
class Shrinker {
 public:
  Shrinker(Program program, const Fails& fails, std::size_t max_runs)
      : program_(std::move(program)), fails_(fails), runs_left_(max_runs) {}

  Program run() {
    bool is_smaller = true;
    while (is_smaller && runs_left_ > 0) {
      is_smaller = remove_operations();
      is_smaller = simplify_numbers() || is_smaller;
      is_smaller = remove_pairs() || is_smaller;
    }
    return std::move(program_);
  }

 private:
  /// Takes the candidate over when it fails, too.
  bool adopt(Program candidate) {
    if (runs_left_ == 0) return false;
    --runs_left_;
    if (!fails_(candidate)) return false;
    program_ = std::move(candidate);
    return true;
  }

  /// Chunks of half the program, of a quarter, and so on to single operations, last ones first.
  bool remove_operations() {
    bool is_smaller = false;
    for (std::size_t chunk = std::max<std::size_t>(program_.operations.size() / 2, 1);;
         chunk /= 2) {
      for (std::size_t end = program_.operations.size(); end > 0;) {
        const std::size_t begin = end - std::min(chunk, end);
        Program candidate = program_;
        candidate.operations.erase(
            candidate.operations.begin() + static_cast<std::ptrdiff_t>(begin),
            candidate.operations.begin() + static_cast<std::ptrdiff_t>(end));
        is_smaller = adopt(std::move(candidate)) || is_smaller;
        end = begin;
      }
      if (chunk <= 1) return is_smaller;
    }
  }

  /// Two operations that only together can be left out, as one that makes and one that ends.
  bool remove_pairs() {
    if (program_.operations.size() > kLongestForPairs) return false;
    bool is_smaller = false;
    for (std::size_t second = program_.operations.size(); second-- > 1;) {
      for (std::size_t first = second; first-- > 0 && second < program_.operations.size();) {
        Program candidate = program_;
        candidate.operations.erase(candidate.operations.begin() +
                                   static_cast<std::ptrdiff_t>(second));
        candidate.operations.erase(candidate.operations.begin() +
                                   static_cast<std::ptrdiff_t>(first));
        is_smaller = adopt(std::move(candidate)) || is_smaller;
      }
    }
    return is_smaller;
  }

  bool simplify_numbers() {
    bool is_smaller = simplify_list([](Program& p) { return std::span(p.setup); });
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      is_smaller = simplify_list([i](Program& p) { return std::span(p.operations[i].numbers); }) ||
                   is_smaller;
    }
    return is_smaller;
  }

  template <class NumbersOf>
  bool simplify_list(const NumbersOf& numbers_of) {
    bool is_smaller = false;
    for (std::size_t i = 0; i < numbers_of(program_).size(); ++i) {
      // Numbers are taken modulo something, so a small one can do what half of it cannot.
      for (std::uint32_t smaller = 0; smaller < kSmall; ++smaller) {
        if (try_number(numbers_of, i, smaller)) {
          is_smaller = true;
          break;
        }
      }
      while (try_number(numbers_of, i, numbers_of(program_)[i] / 2) ||
             try_number(numbers_of, i, numbers_of(program_)[i] - 1)) {
        is_smaller = true;
      }
    }
    return is_smaller;
  }

  template <class NumbersOf>
  bool try_number(const NumbersOf& numbers_of, std::size_t index, std::uint32_t smaller) {
    if (smaller >= numbers_of(program_)[index]) return false;
    Program candidate = program_;
    numbers_of(candidate)[index] = smaller;
    return adopt(std::move(candidate));
  }

  static constexpr std::uint32_t kSmall = 24;
  static constexpr std::size_t kLongestForPairs = 40;

  Program program_;
  const Fails& fails_;
  std::size_t runs_left_;
};

}  // namespace

Program shrink(Program program, const Fails& fails, std::size_t max_runs) {
  return Shrinker(std::move(program), fails, max_runs).run();
}

}  // namespace kvarena::test
