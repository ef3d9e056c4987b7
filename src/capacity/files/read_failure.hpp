#pragma once

/// @file
/// `ReadFailure`: says why a model's file could not be read: a Status's code and errno, and a
/// description for people. Every reader of model files fills one beside the Status that it returns.
/// A plain value.

#include "base/finding.hpp"
#include "kvarena/base/status.hpp"

#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

namespace kvarena::capacity {

/// The reason of a failure. A reader stops at the first.
struct ReadFailure {
  StatusCode code = StatusCode::parse_error;  ///< io_error and not_found: `native` is the errno
  std::int32_t native = 0;                    ///< errno, or 0
  Finding what;  ///< description; its subject is the file and the place in it
};

/// Returns "FILE: PLACE: found ...; expected ...; ADVICE" in one line without control characters.
inline std::string to_string(const ReadFailure& failure) { return to_string(failure.what); }

/// Returns the Status of a failure: its code and errno, about a file.
inline Status status_of(const ReadFailure& failure) noexcept {
  return {failure.code, Resource::file, Option::none, failure.native, 0, 0, 0};
}

/// Sets `failure` to a parse_error of `file` and returns its Status. The subject of `what` is a
/// place: "byte 24", "line 3, column 9", "$.num_layers"; empty: the whole file.
inline Status refuse(ReadFailure& failure, const std::string& file, Finding what) {
  what.subject = what.subject.empty() ? file : file + ": " + what.subject;
  failure = {.what = std::move(what)};
  return status_of(failure);
}

/// Makes the failure (not_found or io_error) for a `path` that the operating system refused with
/// `error` (an errno).
inline ReadFailure system_failure(const std::string& path, int error) {
  const bool is_absent = error == ENOENT || error == ENOTDIR;
  return {.code = is_absent ? StatusCode::not_found : StatusCode::io_error,
          .native = error,
          .what = {.subject = path,
                   .found = std::system_category().message(error),
                   .expected = "a file that can be read"}};
}

}  // namespace kvarena::capacity
