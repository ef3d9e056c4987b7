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

/// What `connections` answers to exactly these bytes (of one socket's buffer at most) before the
/// client goes; "<hangs>" where its connection stays.
inline std::string exchange(http::Connections& connections, std::string_view request) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return "<no socket>";
  static_cast<void>(::send(ends[0], request.data(), request.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  connections.adopt(ends[1]);
  const auto turn = [&connections] {
    for (int turns = 0; connections.size() > 0 && turns < 8; ++turns) connections.turn();
  };
  turn();
  std::string answer;
  std::array<char, 4096> chunk{};
  ssize_t count = 0;
  while ((count = ::recv(ends[0], chunk.data(), chunk.size(), MSG_DONTWAIT)) > 0) {
    answer.append(chunk.data(), static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  turn();
  return connections.size() > 0 ? "<hangs>" : answer;
}

}  // namespace kvarena::test
