#include "health/http/server.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <memory>
#include <system_error>
#include <utility>

namespace kvarena::http {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& address, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  const char* numeric = address == "localhost" ? "127.0.0.1" : address.c_str();
  addrinfo* found = nullptr;
  if (::getaddrinfo(numeric, std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

Status io_error(Resource resource) {
  return {StatusCode::io_error, resource, Option::none, errno, 0, 0, 0};
}

std::uint16_t port_of(const sockaddr_storage& bound) {
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

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

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (number_ >= 0) ::close(number_);
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

Result<Listener> Listener::bind(const std::string& address, std::uint16_t port) {
  const Addresses found = resolve(address, port);
  if (!found) return no_address();
  Listener listener;
  listener.socket =
      Descriptor(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int number = listener.socket.number();
  if (number < 0) return io_error(Resource::address);
  const int on = 1;
  ::setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::bind(number, found->ai_addr, found->ai_addrlen) != 0 || ::listen(number, SOMAXCONN) != 0 ||
      ::getsockname(number, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return io_error(Resource::address);
  }
  listener.port = port_of(bound);
  const std::string host = bound.ss_family == AF_INET6 ? "[" + address + "]" : address;
  listener.url = fmt::format("http://{}:{}", host, listener.port);
  return listener;
}

std::optional<bool> is_loopback(const std::string& address) {
  const Addresses found = resolve(address, 0);
  if (!found) return std::nullopt;
  if (found->ai_family == AF_INET6) {
    const auto& v6 = *reinterpret_cast<const sockaddr_in6*>(found->ai_addr);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) != 0;
  }
  const auto& v4 = *reinterpret_cast<const sockaddr_in*>(found->ai_addr);
  return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
}

Result<Wakeup> Wakeup::create() {
  Wakeup wakeup;
  wakeup.event_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup.event_.is_open()) return io_error(Resource::event);
  return wakeup;
}

void Wakeup::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.number(), &one, sizeof one);
}

bool Wakeup::await(std::chrono::milliseconds limit) const noexcept {
  pollfd waited{number(), POLLIN, 0};
  return ::poll(&waited, 1, static_cast<int>(limit.count())) > 0;
}

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
