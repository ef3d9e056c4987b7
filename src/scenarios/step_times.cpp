#include "scenarios/step_times.hpp"

#include <algorithm>

namespace kvarena::replay::pressure {

StepTimes::StepTimes(std::int64_t appends) : appends_(appends) {
  for (std::vector<std::int64_t>* times : {&first_, &last_}) {
    times->resize(static_cast<std::size_t>(appends / 10 + 1));  // touches every page
    times->clear();
  }
}

void StepTimes::add(std::int64_t appends_done, std::int64_t ns) {
  if (appends_done <= appends_ / 10) first_.push_back(ns);
  if (appends_done > appends_ - appends_ / 10) last_.push_back(ns);
}

std::int64_t StepTimes::median_of(std::vector<std::int64_t> times) {
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace kvarena::replay::pressure
