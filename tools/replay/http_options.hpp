#pragma once

/// @file
/// `--http`, `--http-token-file` and `--linger`: how a command that runs serves its health.

#include "tools/console.hpp"
#include "tools/http_address.hpp"

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace kvarena::tools {

/// The options and what they mean.
class HttpOptions {
 public:
  /// Declares them on `command`.
  void declare(CLI::App& command);
  /// Takes the address apart. Reports what is wrong on the console.
  bool take(const Console& console);
  /// The first line of the token's file, empty without one; nullopt where it cannot be read, which
  /// it reports.
  std::optional<std::string> token(const Console& console) const;

  bool is_given() const noexcept { return !http_.empty(); }
  bool lingers() const noexcept { return linger_; }
  const HttpAddress& address() const noexcept { return address_; }

 private:
  std::string http_;
  std::string token_path_;
  bool linger_ = false;
  HttpAddress address_;
};

}  // namespace kvarena::tools
