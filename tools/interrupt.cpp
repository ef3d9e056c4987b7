#include "tools/interrupt.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace kvarena::tools {

namespace {

std::atomic<int> write_end{-1};  // of the pipe that a handler may write to
std::atomic<bool> has_come{false};
std::atomic<bool> has_hung_up{false};
constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};
std::array<std::atomic<std::int64_t>, kSignals.size()> first_ns;  // when each came; 0: not yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);

// `timeout` sends its signal to the command and to the command's group.
constexpr std::int64_t kOneRequestNs = 500'000'000;

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void on_signal(int signal) {
  for (std::size_t n = 0; n < kSignals.size(); ++n) {
    if (kSignals[n] != signal) continue;
    std::int64_t first = 0;
    if (first_ns[n].compare_exchange_strong(first, now_ns())) break;
    if (now_ns() - first < kOneRequestNs) return;
    ::signal(signal, SIG_DFL);
    ::raise(signal);  // ends the process when this handler returns
    return;
  }
  if (signal == SIGHUP) has_hung_up = true;
  Interrupt::request();
}

}  // namespace

Interrupt::Interrupt() {
  has_come = false;
  has_hung_up = false;
  for (auto& first : first_ns) first = 0;
  if (::pipe2(pipe_.data(), O_CLOEXEC | O_NONBLOCK) != 0) return;
  write_end = pipe_[1];
  struct sigaction wake {};
  wake.sa_handler = on_signal;
  wake.sa_flags = SA_RESTART;
  for (std::size_t n = 0; n < kSignals.size(); ++n) {
    ::sigaction(kSignals[n], &wake, &before_[n]);
    if (kSignals[n] == SIGHUP && before_[n].sa_handler == SIG_IGN) {
      ::sigaction(SIGHUP, &before_[n], nullptr);
    }
  }
}

Interrupt::~Interrupt() {
  if (pipe_[0] < 0) return;
  for (std::size_t n = 0; n < kSignals.size(); ++n) {
    ::sigaction(kSignals[n], &before_[n], nullptr);
  }
  write_end = -1;
  ::close(pipe_[0]);
  ::close(pipe_[1]);
}

bool Interrupt::wait_for(std::chrono::milliseconds time) {
  pollfd readable{pipe_[0], POLLIN, 0};
  while (::poll(&readable, 1, static_cast<int>(time.count())) < 0 && errno == EINTR) {
  }
  return (readable.revents & POLLIN) != 0;
}

const std::atomic<bool>& Interrupt::came() const noexcept { return has_come; }

bool Interrupt::hung_up() noexcept { return has_hung_up; }

void Interrupt::request() noexcept {
  const int error = errno;
  const int pipe = write_end;
  if (pipe >= 0) {
    has_come = true;
    [[maybe_unused]] const ssize_t written = ::write(pipe, "", 1);
  }
  errno = error;
}

}  // namespace kvarena::tools
