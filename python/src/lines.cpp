// Log lines, violations and health's calls on their way to Python. The library logs under locks, on
// any thread, where nobody may wait for the GIL: lines go into a queue of bounded size, and one
// thread of Python (kvarena._log) takes them out.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>

#include "lines.hpp"

#include <nanobind/stl/string.h>

namespace kvarena::python {

namespace {

constexpr std::size_t kMaxLines = 4096;

/// The queue. It lives as long as the process: threads of the library may log while it exits.
struct Queue {
  std::mutex mutex;
  std::condition_variable filled;
  std::deque<Line> lines;
  std::uint64_t dropped = 0;
  bool is_closed = true;
};

Queue& queue() {
  static Queue* const made = new Queue;
  return *made;
}

void hear_line(void*, std::int32_t level, const char* line, std::size_t length) {
  push_line({"log", level, std::string(line, length), "", 0});
}

void hear_violation(void*, const kvarena_status* status, const char* call, const char* object) {
  char text[512];
  kvarena_describe(status, text, sizeof text);
  push_line({"violation", KVARENA_LOG_CRITICAL, std::string(call) + ": " + text, object, 0});
}

/// Opens the queue, and sends lines of `level` and above to it (5: none), and violations if asked.
void open_lines(std::int32_t level, bool violations) {
  {
    const std::lock_guard lock(queue().mutex);
    queue().is_closed = false;
  }
  // Neither waits for the GIL, but a thread that logs may hold the library's lock.
  const kvarena_status status = without_gil([&] {
    kvarena_set_violation(violations ? hear_violation : nullptr, nullptr);
    return level >= KVARENA_LOG_OFF ? kvarena_set_log(nullptr, nullptr, KVARENA_LOG_CRITICAL)
                                    : kvarena_set_log(hear_line, nullptr, level);
  });
  check(status);
}

/// Silences the library and lets the reader come to the end.
void close_lines() {
  without_gil([] {
    kvarena_set_log(nullptr, nullptr, KVARENA_LOG_CRITICAL);
    kvarena_set_violation(nullptr, nullptr);
    const std::lock_guard lock(queue().mutex);
    queue().is_closed = true;
    queue().filled.notify_all();
  });
}

/// Waits for lines. Returns (lines, dropped), or None when the queue is closed and empty.
nb::object take_lines() {
  std::deque<Line> taken;
  std::uint64_t dropped = 0;
  without_gil([&] {
    Queue& q = queue();
    std::unique_lock lock(q.mutex);
    q.filled.wait(lock, [&] { return !q.lines.empty() || q.is_closed; });
    taken.swap(q.lines);
    std::swap(dropped, q.dropped);
  });
  if (taken.empty()) return nb::none();
  nb::list lines;
  for (const Line& line : taken) {
    lines.append(nb::make_tuple(line.kind, line.level, line.text, line.name, line.target));
  }
  return nb::make_tuple(lines, dropped);
}

}  // namespace

void push_line(Line line) {
  Queue& q = queue();
  const std::lock_guard lock(q.mutex);
  if (q.is_closed) return;
  if (q.lines.size() == kMaxLines) {
    ++q.dropped;
    return;
  }
  q.lines.push_back(std::move(line));
  q.filled.notify_one();
}

void bind_lines(nb::module_& module) {
  module.def("open_lines", &open_lines, nb::arg("level"), nb::arg("violations"));
  module.def("close_lines", &close_lines);
  module.def("take_lines", &take_lines);
}

}  // namespace kvarena::python
