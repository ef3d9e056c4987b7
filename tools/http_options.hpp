#pragma once

/// @file
/// `--http`, `--http-token-file` and `--linger`: how a command that runs serves its health.

#include "console.hpp"
#include "http_address.hpp"

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
  /// Reads address and token. Reports what is wrong on the console.
  bool take(const Console& console);

  bool is_given() const noexcept { return !http_.empty(); }
  bool lingers() const noexcept { return linger_; }
  const HttpAddress& address() const noexcept { return address_; }
  const std::string& token() const noexcept { return token_; }

 private:
  std::string http_;
  std::string token_path_;
  bool linger_ = false;
  HttpAddress address_;
  std::string token_;
};

}  // namespace kvarena::tools
