#include "tools/http_address.hpp"

#include <fmt/format.h>

#include <charconv>
#include <fstream>

namespace kvarena::tools {

std::optional<HttpAddress> parse_http_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view number = text.substr(colon + 1);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return std::nullopt;
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != host.npos) {
    return std::nullopt;  // an IPv6 address needs its brackets
  }
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), port);
  if (host.empty() || number.empty() || error != std::errc{} ||
      end != number.data() + number.size()) {
    return std::nullopt;
  }
  return HttpAddress{std::string(host), port};
}

std::optional<HttpAddress> parse_http_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) return std::nullopt;
  text.remove_prefix(kScheme.size());
  if (text.ends_with('/')) text.remove_suffix(1);
  return parse_http_address(text);
}

std::optional<std::string> read_token(const Console& console, const std::string& path) {
  std::string token;
  if (path.empty()) return token;
  std::ifstream file(path);
  if (std::getline(file, token)) {
    while (token.ends_with('\r') || token.ends_with(' ')) token.pop_back();
    if (!token.empty()) return token;
  }
  console.error(
      fmt::format("--http-token-file {}: cannot be read, or its first line is empty", path),
      "a file whose first line is the token", "");
  return std::nullopt;
}

}  // namespace kvarena::tools
