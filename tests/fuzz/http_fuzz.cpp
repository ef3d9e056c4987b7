// Any bytes at all as the head of a request. libFuzzer calls this with bytes of its own
// (-DKVARENA_FUZZ=ON with clang); corpus_test.cpp with the corpus and its mutations.

#include "health/http/connection.hpp"
#include "health/http/endpoints.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

using kvarena::http::Answer;
using kvarena::http::Endpoints;

Endpoints make_endpoints(std::string token) {
  const auto route = [] { return Answer{200, "application/json", std::string(3000, 'x')}; };
  return Endpoints(
      {{{"/health", route}, {"/metrics", route}, {"/stats", route}}, std::move(token)});
}

/// Every answer is one response with a status that this server gives, to be closed behind.
void check(std::string_view response) {
  constexpr std::string_view kStatuses[] = {"200", "400", "401", "403", "404",
                                            "405", "413", "414", "417"};
  bool known = false;
  for (const std::string_view status : kStatuses) {
    known = known || response.substr(9, 3) == status;
  }
  const std::string_view head = response.substr(0, response.find("\r\n\r\n"));
  if (!response.starts_with("HTTP/1.1 ") || !known || head.size() == response.size() ||
      head.find("\r\nConnection: close") == head.npos) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Endpoints open = make_endpoints("");
  static Endpoints guarded = make_endpoints("0123456789abcdef");
  std::string_view head(reinterpret_cast<const char*>(data), size);
  head = head.substr(0, kvarena::http::end_of_head(head));
  check(open.answer(head));
  check(guarded.answer(head));
  return 0;
}
