#pragma once

/// @file
/// Addresses and tokens of HTTP as people give them.

#include "tools/console.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvarena::tools {

/// A host and a port.
struct HttpAddress {
  std::string host;        ///< without brackets
  std::uint16_t port = 0;  ///< as given

  friend bool operator==(const HttpAddress&, const HttpAddress&) = default;
};

/// "127.0.0.1:15858", "localhost:0", "[::1]:15858"; nothing for anything else.
std::optional<HttpAddress> parse_http_address(std::string_view text);
/// "http://HOST:PORT" or "https://HOST[:PORT]" (443), without the slash that may be behind; nothing
/// for anything else.
std::optional<std::string> parse_http_url(std::string_view text);
/// Returns the first line of a file that other users cannot read or write; "" for an empty path. On
/// failure reports it on the console and returns nothing.
std::optional<std::string> read_token(const Console& console, const std::string& path);

}  // namespace kvarena::tools
