#include "health/http/connection.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace kvarena::http {

namespace {

/// What a client may send behind its request before it is cut off.
constexpr std::size_t kMaxDiscarded = 1 << 20;
constexpr std::size_t kChunk = 16 << 10;

bool would_block() noexcept { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

std::size_t end_of_head(std::string_view bytes) noexcept {
  const std::size_t crlf = bytes.find("\n\r\n");
  const std::size_t lf = bytes.find("\n\n");
  if (crlf == bytes.npos && lf == bytes.npos) return bytes.npos;
  return crlf < lf ? crlf + 3 : lf + 2;
}

Connection::~Connection() { close(); }

Connection::Connection(Connection&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      deadline_(other.deadline_),
      phase_(std::exchange(other.phase_, Phase::closed)),
      request_(std::move(other.request_)),
      answer_(std::move(other.answer_)),
      sent_(other.sent_),
      discarded_(other.discarded_) {}

Connection& Connection::operator=(Connection&& other) noexcept {
  if (this == &other) return *this;
  close();
  socket_ = std::exchange(other.socket_, -1);
  deadline_ = other.deadline_;
  phase_ = std::exchange(other.phase_, Phase::closed);
  request_ = std::move(other.request_);
  answer_ = std::move(other.answer_);
  sent_ = other.sent_;
  discarded_ = other.discarded_;
  return *this;
}

void Connection::advance(Endpoints& endpoints, std::size_t max_request_bytes,
                         std::chrono::milliseconds linger) {
  switch (phase_) {
    case Phase::reading: return read_head(endpoints, max_request_bytes, linger);
    case Phase::answering: return send_rest(linger);
    case Phase::lingering: return discard();
    case Phase::closed: return;
  }
}

void Connection::refuse(int status, std::chrono::milliseconds linger) {
  send_answer(refusal(status), linger);
}

void Connection::expire(std::chrono::milliseconds linger) {
  if (phase_ == Phase::reading) return refuse(408, linger);
  close();
}

void Connection::read_head(Endpoints& endpoints, std::size_t max_request_bytes,
                           std::chrono::milliseconds linger) {
  std::array<char, kChunk> chunk;
  const std::size_t room = max_request_bytes + 1 - request_.size();
  const ssize_t count = ::recv(socket_, chunk.data(), std::min(room, chunk.size()), 0);
  if (count < 0) return would_block() ? void() : close();
  if (count == 0) return request_.empty() ? close() : refuse(400, linger);
  const std::size_t seen = request_.size();
  request_.append(chunk.data(), static_cast<std::size_t>(count));
  // The blank line may have begun in the bytes seen before.
  const std::size_t from = seen < 2 ? 0 : seen - 2;
  const std::size_t end = end_of_head(std::string_view(request_).substr(from));
  if (end != std::string::npos && from + end <= max_request_bytes) {
    return send_answer(endpoints.answer(std::string_view(request_).substr(0, from + end)), linger);
  }
  if (request_.size() > max_request_bytes) {
    refuse(request_.find('\n') == std::string::npos ? 414 : 431, linger);
  }
}

void Connection::send_answer(std::string answer, std::chrono::milliseconds linger) {
  request_ = {};
  answer_ = std::move(answer);
  phase_ = Phase::answering;
  send_rest(linger);
}

void Connection::send_rest(std::chrono::milliseconds linger) {
  while (sent_ < answer_.size()) {
    const ssize_t count =
        ::send(socket_, answer_.data() + sent_, answer_.size() - sent_, MSG_NOSIGNAL);
    if (count < 0) return would_block() ? void() : close();
    sent_ += static_cast<std::size_t>(count);
  }
  answer_ = {};
  if (::shutdown(socket_, SHUT_WR) != 0) return close();
  phase_ = Phase::lingering;
  deadline_ = std::chrono::steady_clock::now() + linger;
  discard();
}

void Connection::discard() {
  std::array<char, kChunk> chunk;
  const ssize_t count = ::recv(socket_, chunk.data(), chunk.size(), 0);
  if (count < 0) return would_block() ? void() : close();
  discarded_ += static_cast<std::size_t>(count);
  if (count == 0 || discarded_ > kMaxDiscarded) close();
}

void Connection::close() noexcept {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  phase_ = Phase::closed;
}

}  // namespace kvarena::http
