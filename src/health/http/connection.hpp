#pragma once

/// @file
/// `Connection`: one client, from accept to close. Reads a request's head within a budget of bytes,
/// sends one answer, then lets the client close first, so that what it still sends does not reset
/// the connection before it has read the answer. Owns its socket, which never blocks. Deadlines
/// are the server's: it tells when the time is over. One thread.

#include "health/http/endpoints.hpp"

#include <chrono>
#include <cstddef>
#include <string>

namespace kvarena::http {

using Time = std::chrono::steady_clock::time_point;

/// A client's connection.
class Connection {
 public:
  /// Where it is.
  enum class Phase { reading, answering, lingering, closed };

  /// Takes over `socket`.
  Connection(int socket, Time deadline) : socket_(socket), deadline_(deadline) {}
  ~Connection();
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;

  /// Its socket, to wait for.
  int socket() const noexcept { return socket_; }
  /// Where it is.
  Phase phase() const noexcept { return phase_; }
  /// When its phase must be over.
  Time deadline() const noexcept { return deadline_; }
  /// Whether it waits for room to write, else for bytes to read.
  bool waits_to_write() const noexcept { return phase_ == Phase::answering; }

  /// The socket is ready: goes as far as it can without waiting.
  void advance(Endpoints& endpoints, std::size_t max_request_bytes,
               std::chrono::milliseconds linger);
  /// Sends this instead of an answer.
  void refuse(int status, std::chrono::milliseconds linger);
  /// The deadline has passed: a reader is told so (408), others are cut off.
  void expire(std::chrono::milliseconds linger);

 private:
  void read_head(Endpoints& endpoints, std::size_t max_request_bytes,
                 std::chrono::milliseconds linger);
  void send_answer(std::string answer, std::chrono::milliseconds linger);
  void send_rest(std::chrono::milliseconds linger);
  void discard();
  void close() noexcept;

  int socket_;
  Time deadline_;
  Phase phase_ = Phase::reading;
  std::string request_;
  std::string answer_;
  std::size_t sent_ = 0;
  std::size_t discarded_ = 0;
};

/// Where the head in `bytes` ends, its blank line included, or npos. A blank line that is not
/// CRLF CRLF ends it too, so that malformed heads are answered without waiting.
std::size_t end_of_head(std::string_view bytes) noexcept;

}  // namespace kvarena::http
