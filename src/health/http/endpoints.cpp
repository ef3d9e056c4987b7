#include "health/http/endpoints.hpp"

#include "health/http/access.hpp"

#include <httplib.h>
#include <signal.h>
#include <strings.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

namespace kvarena::http {

namespace {

using Handled = httplib::Server::HandlerResponse;

/// A request in memory, and what is written in answer to it.
class MemoryStream final : public httplib::Stream {
 public:
  explicit MemoryStream(std::string_view request) : request_(request) {}

  bool is_readable() const override { return !request_.empty(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* target, std::size_t size) override {
    const std::size_t count = std::min(size, request_.size());
    std::memcpy(target, request_.data(), count);
    request_.remove_prefix(count);
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* bytes, std::size_t size) override {
    response_.append(bytes, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }

  std::string take_response() { return std::move(response_); }

 private:
  std::string_view request_;
  std::string response_;
};

/// The head without Range headers: an answer is always whole, and httplib would match them by a
/// recursive regular expression before any of our code is asked.
std::string without_ranges(std::string_view head) {
  constexpr std::string_view kRange = "range:";
  std::string kept;
  kept.reserve(head.size());
  while (!head.empty()) {
    const std::size_t newline = head.find('\n');
    const std::string_view line = head.substr(0, newline == head.npos ? newline : newline + 1);
    head.remove_prefix(line.size());
    const bool is_range = line.size() >= kRange.size() &&
                          ::strncasecmp(line.data(), kRange.data(), kRange.size()) == 0;
    if (!is_range) kept.append(line);
  }
  return kept;
}

bool has_body(const httplib::Request& request) {
  return request.has_header("Transfer-Encoding") ||
         (request.has_header("Content-Length") &&
          request.get_header_value("Content-Length") != "0");
}

void refuse(httplib::Response& response, int status, const std::string& text) {
  response.status = status;
  response.set_content(text + "\n", "text/plain");
}

}  // namespace

/// Routes every request itself, before httplib reads a body or matches a path.
class Endpoints::Parser final : private httplib::Server {
 public:
  explicit Parser(EndpointsOptions options) : options_(std::move(options)) {
    set_default_headers({{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}});
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      if (admit(request, response)) route(request, response);
      return Handled::Handled;
    });
    set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, const std::exception_ptr&) {
          refuse(response, 500, "the answer could not be made");
        });
    // httplib promises ranges in answer to HEAD.
    set_post_routing_handler([](const httplib::Request&, httplib::Response& response) {
      response.headers.erase("Accept-Ranges");
    });
    set_expect_100_continue_handler([](const httplib::Request&, httplib::Response& response) {
      response.status = 417;
      return 0;  // neither 100 nor 417: httplib then sends the response and ends there
    });
  }

  std::string answer(std::string_view head) {
    const std::string request = without_ranges(head);
    MemoryStream stream(request);
    bool closed = false;
    httplib::Server::process_request(stream, /*close_connection=*/true, closed, nullptr);
    std::string response = stream.take_response();
    return response.empty() ? refusal(400) : response;
  }

 private:
  bool admit(const httplib::Request& request, httplib::Response& response) const {
    if (request.get_header_value_count("Host") > 1) {
      refuse(response, 400, "more than one Host header");
      return false;
    }
    if (!options_.token.empty()) {
      if (request.get_header_value_count("Authorization") == 1 &&
          carries_token(request.get_header_value("Authorization"), options_.token)) {
        return true;
      }
      response.set_header("WWW-Authenticate", "Bearer realm=\"kvarena\"");
      refuse(response, 401, "a token is needed: Authorization: Bearer TOKEN");
      return false;
    }
    if (options_.check_host && request.has_header("Host") &&
        !names_loopback(request.get_header_value("Host"))) {
      refuse(response, 403, "the Host header must name this machine's loopback");
      return false;
    }
    return true;
  }

  void route(const httplib::Request& request, httplib::Response& response) const {
    if (request.method != "GET" && request.method != "HEAD") {
      response.set_header("Allow", "GET, HEAD");
      return refuse(response, 405, "only GET and HEAD");
    }
    if (has_body(request)) return refuse(response, 413, "a request has no body here");
    const auto found = options_.routes.find(request.path);
    if (found == options_.routes.end()) {
      std::string paths;
      for (const auto& [path, route] : options_.routes) paths += " " + path;
      return refuse(response, 404, "there is only" + paths);
    }
    Answer answer = found->second();
    response.status = answer.status;
    response.set_header("Content-Type", answer.content_type);
    response.body = std::move(answer.body);
  }

  EndpointsOptions options_;
};

Endpoints::Endpoints(EndpointsOptions options) {
  // httplib's server makes the whole process ignore SIGPIPE, which is the engine's to decide; ours
  // never needs it.
  struct sigaction before {};
  const bool known = ::sigaction(SIGPIPE, nullptr, &before) == 0;
  parser_ = std::make_unique<Parser>(std::move(options));
  if (known) ::sigaction(SIGPIPE, &before, nullptr);
}

Endpoints::~Endpoints() = default;

std::string Endpoints::answer(std::string_view head) {
  try {
    return parser_->answer(head);
  } catch (const std::bad_alloc&) {  // says nothing about the request
    throw;
  } catch (const std::exception&) {  // what httplib throws at malformed input
    return refusal(400);
  }
}

}  // namespace kvarena::http
