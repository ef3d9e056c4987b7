#pragma once

/// @file
/// A TCP client that sends exactly the bytes it is told to, well-formed HTTP or not.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena::test {

/// One connection to 127.0.0.1; closed at the end.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ =
        ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() {
    if (socket_ >= 0) ::close(socket_);
  }
  RawClient(RawClient&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), connected_(other.connected_) {}
  RawClient& operator=(RawClient&&) = delete;

  bool connected() const noexcept { return connected_; }

  /// False when the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }
  /// Tells the server that nothing more comes.
  void finish_sending() { ::shutdown(socket_, SHUT_WR); }

  /// Waits, without reading, until the server has closed or reset; false: it has not in time.
  bool await_close(int limit_ms = 60'000) const {
    pollfd waited{socket_, POLLRDHUP, 0};
    return ::poll(&waited, 1, limit_ms) == 1;
  }
  /// Everything until the server closes; what has come when it resets or `limit_ms` is over.
  std::string receive_all(int limit_ms = 60'000) {
    std::string received;
    char chunk[16384];
    while (true) {
      pollfd waited{socket_, POLLIN, 0};
      if (::poll(&waited, 1, limit_ms) <= 0) return received + "<timeout>";
      const ssize_t count = ::recv(socket_, chunk, sizeof chunk, 0);
      if (count < 0) return received + "<reset>";
      if (count == 0) return received;
      received.append(chunk, static_cast<std::size_t>(count));
    }
  }

 private:
  int socket_ = -1;
  bool connected_ = false;
};

/// The whole answer to `request`.
inline std::string ask(std::uint16_t port, std::string_view request) {
  RawClient client(port);
  if (!client.connected()) return "<refused>";
  client.send(request);
  return client.receive_all();
}

/// "GET path" as curl sends it.
inline std::string get_request(std::string_view path, std::string_view headers = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + std::string(headers) +
         "\r\n";
}

/// 200 of "HTTP/1.1 200 OK...", 0 when it is no answer.
inline int status_of(std::string_view response) {
  if (!response.starts_with("HTTP/1.1 ") || response.size() < 12) return 0;
  return std::stoi(std::string(response.substr(9, 3)));
}

/// What is behind the blank line.
inline std::string body_of(std::string_view response) {
  const std::size_t end = response.find("\r\n\r\n");
  return end == response.npos ? "" : std::string(response.substr(end + 4));
}

/// Descriptors that this process has open.
inline std::int64_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

}  // namespace kvarena::test
