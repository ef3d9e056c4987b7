#include "health/http/endpoints.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <strings.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace kvarena::http {

namespace {

bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

bool is_token_character(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-._~+/=").find(c) != std::string_view::npos;
}

/// The host without ":port"; the whole where the port is no number.
std::string_view without_port(std::string_view host) noexcept {
  const std::size_t end = host.starts_with('[') ? host.find(']') : std::string_view::npos;
  const std::size_t colon = host.find(':', end == std::string_view::npos ? 0 : end);
  const bool is_port = host.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  return colon == std::string_view::npos || is_port ? host.substr(0, colon) : host;
}

/// Splits http://HOST/PATH, as a client sends it to a proxy. Its host counts instead of the header.
void split_absolute(Request& request) noexcept {
  constexpr std::string_view kScheme = "http://";
  if (!equal_ignoring_case(request.path.substr(0, kScheme.size()), kScheme)) return;
  const std::string_view rest = request.path.substr(kScheme.size());
  request.host = rest.substr(0, rest.find('/'));
  request.num_hosts = 1;
  request.path = rest.substr(request.host.size());
}

Answer refusal(int status, std::string text) { return {status, "text/plain", text + "\n"}; }

}  // namespace

Answer Endpoints::answer(Request request) const {
  if (request.is_malformed) return refusal(400, "the request is malformed");
  if (request.num_hosts == 0 && request.needs_host) return refusal(400, "no Host header");
  if (request.num_hosts > 1) return refusal(400, "more than one Host header");
  split_absolute(request);
  if (!token.empty()) {
    if (request.num_authorizations != 1 || !carries_token(request.authorization, token)) {
      return refusal(401, "a token is needed: Authorization: Bearer TOKEN");
    }
  } else if (check_host && request.num_hosts > 0 && !names_loopback(request.host)) {
    return refusal(403,
                   "without a token only this machine may ask: the Host header must name loopback "
                   "(127.0.0.1, [::1] or localhost). A reverse proxy has to set it, or the server "
                   "needs a token");
  }
  if (request.method != "GET" && request.method != "HEAD") return refusal(405, "only GET and HEAD");
  if (request.has_body) return refusal(413, "a request has no body here");
  const auto found = routes.find(request.path);
  if (found != routes.end()) return found->second();
  std::string paths;
  for (const auto& [path, route] : routes) paths += " " + path;
  return refusal(404, "there is only" + paths);
}

bool is_valid_token(std::string_view token) noexcept {
  return token.size() >= kMinTokenLength && token.size() <= kMaxTokenLength &&
         std::all_of(token.begin(), token.end(), is_token_character);
}

bool carries_token(std::string_view authorization, std::string_view token) noexcept {
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization.size() < kScheme.size() ||
      !equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) {
    return false;
  }
  const std::string_view given = authorization.substr(kScheme.size());
  // volatile: the compiler may not stop at the first difference either.
  volatile std::uint32_t difference = given.size() == token.size() ? 0 : 1;
  for (std::size_t i = 0; i < token.size(); ++i) {
    const char other = i < given.size() ? given[i] : '\0';
    difference = difference | static_cast<std::uint32_t>(static_cast<unsigned char>(token[i]) ^
                                                         static_cast<unsigned char>(other));
  }
  return difference == 0;
}

bool names_loopback(std::string_view host) noexcept {
  const std::string_view name = without_port(host);
  if (equal_ignoring_case(name, "localhost") || name == "[::1]") return true;
  char text[INET_ADDRSTRLEN] = {};
  if (name.size() >= sizeof text) return false;
  std::copy(name.begin(), name.end(), text);
  in_addr address{};
  return ::inet_pton(AF_INET, text, &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

}  // namespace kvarena::http
