#pragma once

/// @file
/// The error of results, and the error of rounding alone. Also the choice of the results to compare
/// when comparing all of a batch would take too long.

#include "base/half.hpp"
#include "tools/attention_meter/attention_problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace kvarena::meter {

/// Sums of squares over (exact, computed) pairs.
class Comparison {
 public:
  /// Results are of type `dtype`, which is_cpu_float.
  explicit Comparison(DType dtype) noexcept : dtype_(dtype) {}

  /// Element `index` of `results` should be `exact`.
  void add(double exact, const void* results, std::int64_t index) noexcept {
    float rounded = 0.0F;
    store_f32(&rounded, dtype_, 0, static_cast<float>(exact));
    add_square(norm_, exact);
    add_square(rounding_, load_f32(&rounded, dtype_, 0) - exact);
    add_square(difference_, load_f32(results, dtype_, index) - exact);
  }
  /// Relative L2 distance of the results.
  double error() const noexcept { return std::sqrt(difference_ / norm_); }
  /// Twice that of the exact results rounded to `dtype`.
  double error_limit() const noexcept { return 2.0 * std::sqrt(rounding_ / norm_); }

 private:
  static void add_square(double& sum, double value) noexcept { sum += value * value; }

  DType dtype_;
  double norm_ = 0.0;
  double rounding_ = 0.0;
  double difference_ = 0.0;
};

/// Returns indices of `costs` whose costs add up to at most `budget`. The most expensive comes
/// first and is always included. The others follow in a random order that is always the same.
inline std::vector<std::int64_t> sampled(const std::vector<std::int64_t>& costs,
                                         std::int64_t budget) {
  std::vector<std::int64_t> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  const auto dearest = std::max_element(costs.begin(), costs.end()) - costs.begin();
  std::shuffle(order.begin(), order.end(), std::mt19937(11));
  std::iter_swap(order.begin(), std::find(order.begin(), order.end(), dearest));
  std::int64_t spent = 0;
  std::size_t taken = 0;
  while (taken < order.size()) {
    spent += costs[static_cast<std::size_t>(order[taken])];
    if (taken > 0 && spent > budget) break;
    ++taken;
  }
  order.resize(taken);
  return order;
}

/// Block ids 0 .. count - 1 in random order, always the same.
inline std::vector<BlockId> shuffled_blocks(std::int64_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(5));
  return {ids.begin(), ids.end()};
}

}  // namespace kvarena::meter
