#pragma once

/// @file
/// `StepTimes`: durations of the steps of a run whose length is known in appends: medians of its
/// first and of its last tenth. Takes all its memory when it is made. One thread at a time.

#include <cstdint>
#include <vector>

namespace kvarena::replay::pressure {

/// Durations by tenth of the run.
class StepTimes {
 public:
  /// `appends`: of the whole run; a step has at least one.
  explicit StepTimes(std::int64_t appends);

  /// A step that ended after `appends_done` of them took `ns`.
  void add(std::int64_t appends_done, std::int64_t ns);
  /// Median of the first tenth, nanoseconds; 0 when there was no step.
  std::int64_t first_median_ns() const { return median_of(first_); }
  /// Of the last tenth.
  std::int64_t last_median_ns() const { return median_of(last_); }

 private:
  static std::int64_t median_of(std::vector<std::int64_t> times);

  std::int64_t appends_;
  std::vector<std::int64_t> first_;
  std::vector<std::int64_t> last_;
};

}  // namespace kvarena::replay::pressure
