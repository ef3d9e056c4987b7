#pragma once

/// @file
/// One request and its answer, without a listener or a thread.

#include "health/http/connections.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>

namespace kvarena::test {

/// Sends exactly these bytes (of one socket's buffer at most) to `connections`. Returns the
/// client's end; -1: no socket.
inline int begin_exchange(http::Connections& connections, std::string_view request) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return -1;
  }
  static_cast<void>(::send(ends[0], request.data(), request.size(), MSG_NOSIGNAL));
  connections.adopt(ends[1]);
  return ends[0];
}

/// A few turns, as many as are of use.
inline void turn(http::Connections& connections) {
  for (int turns = 0; connections.size() > 0 && turns < 8; ++turns) connections.turn();
}

/// What has come by now; closes the client's end.
inline std::string end_exchange(int client) {
  std::string answer;
  std::array<char, 4096> chunk{};
  ssize_t count = 0;
  while ((count = ::recv(client, chunk.data(), chunk.size(), MSG_DONTWAIT)) > 0) {
    answer.append(chunk.data(), static_cast<std::size_t>(count));
  }
  ::close(client);
  return answer;
}

/// What `connections` answers to these bytes before the client goes; "<hangs>" where its connection
/// stays.
inline std::string exchange(http::Connections& connections, std::string_view request) {
  const int client = begin_exchange(connections, request);
  turn(connections);
  std::string answer = end_exchange(client);
  turn(connections);
  return connections.size() > 0 ? "<hangs>" : answer;
}

/// Whether an answer is empty, or one response with a body of the length that its head says, or
/// with none.
inline bool is_one_response(std::string_view answer) {
  if (answer.empty()) return true;
  constexpr std::string_view kLength = "\r\nContent-Length: ";
  const std::size_t head = answer.find("\r\n\r\n");
  const std::size_t length = answer.find(kLength);
  if (!answer.starts_with("HTTP/1.1 ") || head == answer.npos || length > head) return false;
  const std::string_view body = answer.substr(head + 4);
  const std::string_view number = answer.substr(length + kLength.size());
  return body.empty() || number.starts_with(std::to_string(body.size()) + "\r\n");
}

}  // namespace kvarena::test
