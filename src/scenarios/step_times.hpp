#pragma once

/// @file
/// `StepTimes`: durations of the steps of a run whose length is known in appends: medians of its
/// first and of its last tenth. Takes all its memory when it is made. One thread at a time.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvarena::scenarios {

class StepTimes {
 public:
  /// `appends`: of the whole run; a step has at least one.
  explicit StepTimes(std::int64_t appends) : appends_(appends) {
    for (std::vector<std::int64_t>* times : {&first_, &last_}) {
      times->resize(static_cast<std::size_t>(appends / 10 + 1));  // touches every page
      times->clear();
    }
  }

  /// A step that ended after `appends_done` of them took `ns`.
  void add(std::int64_t appends_done, std::int64_t ns) {
    if (appends_done <= appends_ / 10) first_.push_back(ns);
    if (appends_done > appends_ - appends_ / 10) last_.push_back(ns);
  }
  /// Median of the first tenth, nanoseconds; 0 when there was no step.
  std::int64_t first_median_ns() const { return median_of(first_); }
  std::int64_t last_median_ns() const { return median_of(last_); }

 private:
  static std::int64_t median_of(std::vector<std::int64_t> times) {
    if (times.empty()) return 0;
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }

  std::int64_t appends_;
  std::vector<std::int64_t> first_;
  std::vector<std::int64_t> last_;
};

}  // namespace kvarena::scenarios
