#pragma once

/// @file
/// `RequestTimes`: when each request of a replay was served, as a CSV file in the order of the
/// trace. Times are virtual. One thread at a time.

#include "kvarena/base/result.hpp"

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace kvarena::replay {

/// Collects times, and writes them at the end. Does nothing unless open.
class RequestTimes {
 public:
  /// Creates the file at once. Returns io_error (file) with errno.
  Status open(const std::string& path);

  /// Request `index` of the trace was read. Indices come in order, from 0.
  void arrive(std::int64_t index, std::int64_t arrival_ns);
  /// It was admitted. Only the first time counts.
  void start(std::int64_t index, std::int64_t now_ns) { set(index, &Times::started_ns, now_ns); }
  /// Its prompt has been computed. Only the first time counts.
  void compute_prompt(std::int64_t index, std::int64_t now_ns) {
    set(index, &Times::prompt_ns, now_ns);
  }
  /// All its sequences have finished.
  void finish(std::int64_t index, std::int64_t now_ns) { set(index, &Times::finished_ns, now_ns); }

  /// Writes the file. Returns io_error (file) with errno. O(requests).
  Status write();

 private:
  static constexpr std::int64_t kNever = -1;
  struct Times {
    std::int64_t arrival_ns = 0;
    std::int64_t started_ns = kNever;
    std::int64_t prompt_ns = kNever;
    std::int64_t finished_ns = kNever;
  };
  void set(std::int64_t index, std::int64_t Times::*time, std::int64_t now_ns);

  std::ofstream file_;
  bool is_open_ = false;
  std::vector<Times> requests_;
};

}  // namespace kvarena::replay
