#include "tools/interrupt.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace kvarena::tools {

namespace {

std::atomic<int> write_end{-1};  // of the pipe that a handler may write to
std::atomic<bool> has_come{false};
std::atomic<bool> has_hung_up{false};
constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  if (signal == SIGHUP) has_hung_up = true;
  Interrupt::request();
}

}  // namespace

Interrupt::Interrupt() {
  has_come = false;
  has_hung_up = false;
  if (::pipe2(pipe_.data(), O_CLOEXEC | O_NONBLOCK) != 0) return;
  write_end = pipe_[1];
  struct sigaction wake {};
  wake.sa_handler = on_signal;
  wake.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
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
