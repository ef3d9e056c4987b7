#include "tools/replay/http_options.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace kvarena::tools {

void HttpOptions::declare(CLI::App& command) {
  constexpr const char* kGroup = "Health over HTTP";
  auto* http = command.add_option("--http", http_,
                                  "Serve /health, /metrics and /stats during the run; port 0: any "
                                  "free one");
  http->type_name("ADDRESS:PORT")->group(kGroup);
  command
      .add_option("--http-token-file", token_path_,
                  "Ask for the token in the first line of FILE; loopback alone may do without")
      ->type_name("FILE")
      ->group(kGroup)
      ->needs(http);
  command.add_flag("--linger", linger_, "Serve on after the run, until SIGINT or SIGTERM")
      ->group(kGroup)
      ->needs(http);
}

bool HttpOptions::take(const Console& console) {
  if (http_.empty()) return true;
  const auto address = parse_http_address(http_);
  if (!address) {
    console.error(fmt::format("--http {}", http_), "ADDRESS:PORT, such as 127.0.0.1:15858", "");
    return false;
  }
  address_ = *address;
  return true;
}

std::optional<std::string> HttpOptions::token(const Console& console) const {
  return read_token(console, token_path_);
}

}  // namespace kvarena::tools
