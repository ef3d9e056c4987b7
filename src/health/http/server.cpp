#include "health/http/server.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

namespace kvarena::http {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Before the next try of what descriptors or memory did not suffice for.
constexpr milliseconds kRest{50};
/// New connections a turn, so that those before them go on.
constexpr int kAcceptsPerTurn = 16;

bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

Server::Server(Listener listener, Wakeup wakeup, std::unique_ptr<Connections> connections)
    : listener_(std::move(listener)),
      wakeup_(std::move(wakeup)),
      connections_(std::move(connections)) {}

Server::~Server() {
  wakeup_.wake();
  if (thread_.joinable()) thread_.join();
}

Result<std::unique_ptr<Server>> Server::start(Listener listener, Endpoints endpoints,
                                              const Limits& limits) {
  auto wakeup = Wakeup::create();
  if (!wakeup) return wakeup.status();
  auto connections = Connections::create(std::move(endpoints), limits);
  if (!connections) return connections.status();
  std::unique_ptr<Server> made(
      new Server(std::move(listener), std::move(wakeup).value(), std::move(connections).value()));
  try {
    made->thread_ = std::thread([server = made.get()] { server->run(); });
  } catch (const std::system_error&) {
    return exhausted(Resource::thread, 1, 0);
  }
  return made;
}

void Server::run() noexcept {
  while (true) {
    const bool rests = Clock::now() < accept_again_;
    pollfd waited[] = {{wakeup_.number(), POLLIN, 0},
                       {connections_->descriptor(), POLLIN, 0},
                       {rests ? -1 : listener_.socket.number(), POLLIN, 0}};
    const int timeout_ms = rests ? static_cast<int>(kRest.count()) : connections_->timeout_ms();
    const int ready = ::poll(waited, std::size(waited), timeout_ms);
    if (ready < 0 && errno != EINTR && wakeup_.await(kRest)) return;
    if (ready > 0 && waited[0].revents != 0) return;
    try {
      connections_->turn();
      if (ready > 0 && waited[2].revents != 0) accept_some();
    } catch (const std::exception&) {  // no memory
      accept_again_ = Clock::now() + kRest;
    }
  }
}

void Server::accept_some() {
  for (int n = 0; n < kAcceptsPerTurn; ++n) {
    const int socket =
        ::accept4(listener_.socket.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      connections_->adopt(socket);
    } else if (is_shortage(errno)) {
      accept_again_ = Clock::now() + kRest;
      return;
    } else if (errno == EAGAIN) {
      return;
    }  // else: that client is gone; on to the next
  }
}

}  // namespace kvarena::http
