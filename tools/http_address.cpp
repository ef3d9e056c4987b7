#include "tools/http_address.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
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

std::optional<std::string> parse_http_url(std::string_view text) {
  if (text.ends_with('/')) text.remove_suffix(1);
  if (std::ranges::count(text, '/') != 2) return std::nullopt;  // a path
  std::string url(text);
  if (url.starts_with("https://")) {
    const std::string_view host = text.substr(8);
    const bool has_port = host.rfind(':') != host.npos && !host.ends_with(']');
    if (!has_port) url += ":443";
    return parse_http_address(std::string_view(url).substr(8)) ? std::optional(url) : std::nullopt;
  }
  if (!url.starts_with("http://")) return std::nullopt;
  return parse_http_address(text.substr(7)) ? std::optional(url) : std::nullopt;
}

std::optional<std::string> read_token(const Console& console, const std::string& path) {
  std::string token;
  if (path.empty()) return token;
  struct stat file_status {};
  if (::stat(path.c_str(), &file_status) == 0 && S_ISREG(file_status.st_mode) &&
      (file_status.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    console.error(
        fmt::format("--http-token-file {}: everybody on this machine can {} it (mode {:04o})", path,
                    (file_status.st_mode & S_IROTH) != 0 ? "read" : "change",
                    file_status.st_mode & 07777),
        "a file for its owner, or its group, alone", fmt::format("chmod 600 {}", path));
    return std::nullopt;
  }
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
