#include "health/http/http_answer.hpp"

#include <spdlog/fmt/fmt.h>

namespace kvarena::http {

namespace {

struct Refusal {
  int status;
  std::string_view reason;
  std::string_view text;
};

constexpr Refusal kRefusals[] = {
    {400, "Bad Request", "the request is malformed"},
    {408, "Request Timeout", "the request took too long"},
    {414, "URI Too Long", "the request line is too long"},
    {431, "Request Header Fields Too Large", "the request is too long"},
    {503, "Service Unavailable", "too many connections; try again"},
};

}  // namespace

std::string refusal(int status) {
  const Refusal* found = &kRefusals[0];
  for (const Refusal& each : kRefusals) {
    if (each.status == status) found = &each;
  }
  return fmt::format(
      "HTTP/1.1 {} {}\r\nConnection: close\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n"
      "{}\r\n{}\n",
      found->status, found->reason, found->text.size() + 1,
      found->status == 503 ? "Retry-After: 1\r\n" : "", found->text);
}

}  // namespace kvarena::http
