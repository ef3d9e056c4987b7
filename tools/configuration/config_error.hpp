#pragma once

/// @file
/// `ConfigError`: why a configuration cannot be used. Thrown while the command line is parsed, as
/// CLI11's errors are; run_command_line reports it.

#include "tools/exit_codes.hpp"

#include "base/excerpt.hpp"

#include <stdexcept>
#include <string>
#include <utility>

namespace kvarena::tools {

/// what() says where and what was found.
class ConfigError : public std::runtime_error {
 public:
  ConfigError(ExitCode code, const std::string& happened, std::string expected, std::string advice)
      : std::runtime_error(printable(happened)),
        code_(code),
        expected_(std::move(expected)),
        advice_(std::move(advice)) {}

  /// bad_input for a file, usage for a variable or options that contradict one another.
  ExitCode code() const noexcept { return code_; }
  const std::string& expected() const noexcept { return expected_; }
  const std::string& advice() const noexcept { return advice_; }

 private:
  ExitCode code_;
  std::string expected_;
  std::string advice_;
};

}  // namespace kvarena::tools
