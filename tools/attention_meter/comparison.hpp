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
#include <span>
#include <vector>

namespace kvarena::meter {

/// Sums of squares over (exact, computed) pairs.
class Comparison {
 public:
  /// Results are of type `dtype`, which is_cpu_float.
  explicit Comparison(DType dtype) noexcept : dtype_(dtype) {}

  /// Element `index` of `results` should be `exact`.
  void add(double exact, const void* results, std::int64_t index, double weight = 1.0) noexcept {
    float rounded = 0.0F;
    store_f32(&rounded, dtype_, 0, static_cast<float>(exact));
    add_square(norm_, exact, weight);
    add_square(rounding_, load_f32(&rounded, dtype_, 0) - exact, weight);
    add_square(difference_, load_f32(results, dtype_, index) - exact, weight);
  }
  /// Elements `index` .. of `results` should be `exact`, the output of one head. Each head counts
  /// alike: a query token that sees many tokens has small outputs, and their error counts too.
  void add_head(std::span<const double> exact, const void* results, std::int64_t index) noexcept {
    double square = 0.0;
    for (const double value : exact) square += value * value;
    if (square == 0.0) square = 1.0;
    for (const double value : exact) add(value, results, index++, 1.0 / square);
  }
  /// Relative L2 distance of the results.
  double error() const noexcept { return std::sqrt(difference_ / norm_); }
  /// Twice that of the exact results rounded to `dtype`.
  double error_limit() const noexcept { return 2.0 * std::sqrt(rounding_ / norm_); }
  /// Puts the error and its limit into `error` and `limit`, unless what is there is worse. 0 and 0
  /// are nothing.
  void keep_worse(double& error, double& limit) const noexcept {
    const bool is_better = this->error() / error_limit() <= error / limit;  // NaN is not
    if (is_better || std::isnan(error)) return;
    error = this->error();
    limit = error_limit();
  }

 private:
  static void add_square(double& sum, double value, double weight) noexcept {
    sum += value * value * weight;
  }

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
