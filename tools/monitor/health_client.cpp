#include "tools/monitor/health_client.hpp"

#include <fmt/format.h>
#include <httplib.h>

namespace kvarena::tools {

namespace {

using Time = std::chrono::steady_clock::time_point;

HealthAnswer failure(std::string happened, std::string advice) {
  return {{}, std::move(happened), std::move(advice)};
}

HealthAnswer answer_of(int status, std::string body) {
  switch (status) {
    case 200: return {std::move(body), {}, {}};
    case 401:
      return failure("401: a token is needed, or this one is wrong", "give --http-token-file FILE");
    case 403:
      return failure("403: the server does not take this host name",
                     "give its numeric address, as in http://127.0.0.1:9400");
    case 503: return failure("503: the server has too many connections", "try again");
    default: return failure(fmt::format("status {}", status), "is it a kvarena server?");
  }
}

/// Takes an answer's body, within limits.
class Body {
 public:
  explicit Body(Time until) : until_(until) {}
  bool take(const char* bytes, std::size_t count) {
    constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
    is_late_ = std::chrono::steady_clock::now() > until_;
    is_too_large_ = text_.size() + count > kMaxBytes;
    if (is_late_ || is_too_large_) return false;
    text_.append(bytes, count);
    return true;
  }
  std::string& text() { return text_; }
  bool is_late() const { return is_late_; }
  bool is_too_large() const { return is_too_large_; }

 private:
  Time until_;
  std::string text_;
  bool is_late_ = false;
  bool is_too_large_ = false;
};

HealthAnswer no_answer(httplib::Error error, bool is_late, std::chrono::milliseconds patience) {
  const double seconds = std::chrono::duration<double>(patience).count();
  switch (error) {
    case httplib::Error::Connection:
      return failure("no connection: nobody listens there, or it cannot be reached",
                     "start 'kvarena replay --http', or an engine with a HealthServer");
    case httplib::Error::ConnectionTimeout:
      return failure(fmt::format("no connection within {:g} s", seconds),
                     "the machine cannot be reached, or the process hangs");
    case httplib::Error::Read:
      if (!is_late) break;
      return failure(
          fmt::format("no answer within {:g} s: the process hangs or is overloaded", seconds),
          "look at the process: its threads' stacks, its log, the machine's load");
    default: break;
  }
  return failure(fmt::format("no answer: {}", httplib::to_string(error)),
                 "is it a kvarena server?");
}

}  // namespace

HealthAnswer HealthClient::stats() const {
  constexpr int kPatiencesInAll = 12;
  httplib::Client client(address_.host, address_.port);
  client.set_connection_timeout(patience_);
  client.set_read_timeout(patience_);
  httplib::Headers headers;
  if (!token_.empty()) headers.emplace("Authorization", "Bearer " + token_);
  const Time started = std::chrono::steady_clock::now();
  Body body(started + kPatiencesInAll * patience_);
  const httplib::Result result =
      client.Get("/stats", headers,
                 [&body](const char* bytes, std::size_t count) { return body.take(bytes, count); });
  if (result) return answer_of(result->status, std::move(body.text()));
  if (body.is_too_large()) return failure("the answer is too large", "is it a kvarena server?");
  if (body.is_late()) {
    return failure("the answer comes too slowly", "look at the process's and the network's load");
  }
  const bool is_late = std::chrono::steady_clock::now() - started >= patience_;
  return no_answer(result.error(), is_late, patience_);
}

}  // namespace kvarena::tools
