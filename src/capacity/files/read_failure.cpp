#include "capacity/files/read_failure.hpp"

#include "base/excerpt.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

namespace kvarena::capacity {

std::string to_string(const ReadFailure& failure) {
  std::string text = failure.file;
  if (!failure.place.empty()) text += ": " + failure.place;
  text += ": found " + failure.found + "; expected " + failure.expected;
  if (!failure.advice.empty()) text += "; " + failure.advice;
  return printable(text);
}

Status status_of(const ReadFailure& failure) noexcept {
  return {failure.code, Resource::file, Option::none, failure.native, 0, 0, 0};
}

Status refuse(ReadFailure& failure, const std::string& file, std::string found,
              std::string expected, std::string advice) {
  failure = {};
  failure.file = file;
  failure.found = std::move(found);
  failure.expected = std::move(expected);
  failure.advice = std::move(advice);
  return status_of(failure);
}

ReadFailure system_failure(std::string_view path, int error) {
  ReadFailure failure;
  failure.code = error == ENOENT || error == ENOTDIR ? StatusCode::not_found : StatusCode::io_error;
  failure.native = error;
  failure.file = path;
  failure.found = std::system_category().message(error);
  failure.expected = "a file that can be read";
  return failure;
}

}  // namespace kvarena::capacity
