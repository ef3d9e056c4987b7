#include "health/http/listener.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
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

}  // namespace kvarena::http
