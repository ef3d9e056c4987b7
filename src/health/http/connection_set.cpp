#include "health/http/connection_set.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace kvarena::http {

namespace {

using Clock = std::chrono::steady_clock;

/// How long answered clients may take to close.
constexpr std::chrono::milliseconds kMaxLinger{1'000};
/// New connections a turn, so that those before them go on.
constexpr int kAcceptsPerTurn = 64;

bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

ConnectionSet::ConnectionSet(const Listener& listener, const Wakeup& wakeup, Endpoints& endpoints,
                             const Limits& limits)
    : listener_(listener),
      wakeup_(wakeup),
      endpoints_(endpoints),
      limits_(limits),
      linger_(std::min(limits.request, kMaxLinger)) {}

bool ConnectionSet::turn() {
  if (wait() < 0) {
    if (errno == EINTR) return true;
    connections_.clear();  // too many for the process's limit, or for the kernel's memory
    return !wakeup_.await(kRest);
  }
  if (waited_[0].revents != 0) return false;
  const Time now = Clock::now();
  std::size_t index = 2;
  for (Connection& connection : connections_) {
    const bool is_ready = waited_[index++].revents != 0;
    if (connection.deadline() <= now) {  // first: a client that trickles is always ready
      connection.expire(linger_);
    } else if (is_ready) {
      connection.advance(endpoints_, limits_.max_request_bytes, linger_);
    }
  }
  if (waited_[1].revents != 0) accept_all();
  drop_closed();
  return true;
}

int ConnectionSet::wait() {
  waited_.clear();
  waited_.push_back({wakeup_.number(), POLLIN, 0});
  const bool rests = Clock::now() < accept_again_;
  waited_.push_back({rests ? -1 : listener_.socket.number(), POLLIN, 0});
  for (const Connection& connection : connections_) {
    const short events = connection.waits_to_write() ? POLLOUT : POLLIN;
    waited_.push_back({connection.socket(), events, 0});
  }
  return ::poll(waited_.data(), static_cast<nfds_t>(waited_.size()), poll_timeout_ms());
}

int ConnectionSet::poll_timeout_ms() const {
  const Time now = Clock::now();
  Time next = Time::max();
  if (accept_again_ > now) next = accept_again_;
  for (const Connection& connection : connections_) next = std::min(next, connection.deadline());
  if (next == Time::max()) return -1;
  if (next <= now) return 0;
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(next - now).count());
}

void ConnectionSet::accept_all() {
  for (int n = 0; n < kAcceptsPerTurn; ++n) {
    const int socket =
        ::accept4(listener_.socket.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      accept_one(socket);
    } else if (is_shortage(errno)) {
      accept_again_ = Clock::now() + kRest;
      return;
    } else if (errno == EAGAIN) {
      return;
    }  // else: that client is gone; on to the next
  }
}

void ConnectionSet::accept_one(int socket) {
  Connection accepted(socket, Clock::now() + limits_.request);
  const auto is_served = [](const Connection& connection) {
    return connection.phase() == Connection::Phase::reading ||
           connection.phase() == Connection::Phase::answering;
  };
  const auto served =
      static_cast<std::size_t>(std::count_if(connections_.begin(), connections_.end(), is_served));
  if (served < limits_.max_connections) {
    accepted.advance(endpoints_, limits_.max_request_bytes, linger_);
  } else {
    accepted.refuse(503, linger_);
  }
  if (accepted.phase() == Connection::Phase::closed) return;
  connections_.push_back(std::move(accepted));
  // Answered clients that do not close are bounded as well: the oldest goes.
  if (connections_.size() > 2 * limits_.max_connections + kAcceptsPerTurn) {
    const auto oldest = std::find_if(connections_.begin(), connections_.end(),
                                     [&](const Connection& each) { return !is_served(each); });
    if (oldest != connections_.end()) connections_.erase(oldest);
  }
}

void ConnectionSet::drop_closed() {
  connections_.remove_if(
      [](const Connection& connection) { return connection.phase() == Connection::Phase::closed; });
}

}  // namespace kvarena::http
