#include "trace/parse_failure.hpp"

#include <fmt/format.h>

namespace kvarena::trace {

std::string place_of(const ParseFailure& failure) {
  if (failure.line == 0) return failure.file;
  if (failure.column == 0) return fmt::format("{}:{}", failure.file, failure.line);
  return fmt::format("{}:{}:{}", failure.file, failure.line, failure.column);
}

std::string to_string(const ParseFailure& failure) {
  std::string text =
      fmt::format("{}: found {}; expected {}", place_of(failure), failure.found, failure.expected);
  if (!failure.advice.empty()) text += "; " + failure.advice;
  return text;
}

Status status_of(const ParseFailure& failure) noexcept {
  return {StatusCode::parse_error,
          Resource::file,
          Option::none,
          0,
          static_cast<std::uint64_t>(failure.line),
          static_cast<std::uint64_t>(failure.column),
          0};
}

}  // namespace kvarena::trace
