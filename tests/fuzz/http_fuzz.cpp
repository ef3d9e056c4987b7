// Any bytes at all from a client. libFuzzer calls this with bytes of its own (-DKVARENA_FUZZ=ON
// with clang); corpus_test.cpp with the corpus and its mutations.

#include "unit/health/http_exchange.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

namespace {

using kvarena::http::Answer;
using kvarena::http::Connections;

std::unique_ptr<Connections> make_server(std::string token) {
  const auto route = [] { return Answer{200, "application/json", std::string(3000, 'x')}; };
  return Connections::create(
             {{{"/health", route}, {"/metrics", route}, {"/stats", route}}, std::move(token)}, {})
      .value();
}

/// The connection is cut off, or every answer is one response with a status that this server gives.
/// libmicrohttpd 0.9 may repeat the head of its 431 when a head takes the last of its memory.
void check(std::string_view response) {
  if (response.empty()) return;
  constexpr std::string_view kStatuses[] = {"200", "400", "401", "403", "404", "405",
                                            "413", "414", "431", "500", "505"};
  bool known = false;
  for (const std::string_view status : kStatuses) {
    known = known || response.substr(9, 3) == status;
  }
  const std::string_view head = response.substr(0, response.find("\r\n\r\n"));
  const bool is_one = kvarena::test::is_one_response(response) || response.substr(9, 3) == "431";
  if (!response.starts_with("HTTP/1.1 ") || !is_one || !known ||
      head.find("\r\nConnection: close") == head.npos) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto open = make_server("");
  static const auto guarded = make_server("0123456789abcdef");
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check(kvarena::test::exchange(*open, bytes));
  check(kvarena::test::exchange(*guarded, bytes));
  return 0;
}
