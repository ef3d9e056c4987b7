#include "replay/request_times.hpp"

#include <fmt/format.h>

#include <cerrno>

namespace kvarena::replay {
namespace {

// Seconds with six decimals; empty for what never happened.
std::string seconds(std::int64_t ns) {
  if (ns < 0) return {};
  return fmt::format("{}.{:06}", ns / 1'000'000'000, ns % 1'000'000'000 / 1000);
}

}  // namespace

Status RequestTimes::open(const std::string& path) {
  errno = 0;
  file_.open(path, std::ios::binary | std::ios::trunc);
  is_open_ = file_.is_open();
  if (is_open_) return {};
  return {StatusCode::io_error, Resource::file, Option::none, errno, 0, 0, 0};
}

void RequestTimes::arrive(std::int64_t index, std::int64_t arrival_ns) {
  if (!is_open_) return;
  requests_.resize(static_cast<std::size_t>(index) + 1);
  requests_.back().arrival_ns = arrival_ns;
}

void RequestTimes::set(std::int64_t index, std::int64_t Times::*time, std::int64_t now_ns) {
  if (!is_open_) return;
  std::int64_t& known = requests_[static_cast<std::size_t>(index)].*time;
  if (known == kNever) known = now_ns;
}

Status RequestTimes::write() {
  if (!is_open_) return {};
  file_ << "request,arrival_s,started_s,prompt_s,finished_s\n";
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Times& times = requests_[i];
    file_ << fmt::format("{},{},{},{},{}\n", i, seconds(times.arrival_ns),
                         seconds(times.started_ns), seconds(times.prompt_ns),
                         seconds(times.finished_ns));
  }
  errno = 0;
  file_.close();
  if (file_) return {};
  return {StatusCode::io_error, Resource::file, Option::none, errno, 0, 0, 0};
}

}  // namespace kvarena::replay
