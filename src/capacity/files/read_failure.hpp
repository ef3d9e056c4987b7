#pragma once

/// @file
/// `ReadFailure`: says why a model's file could not be read: a Status's code and errno, and a
/// description for people. Every reader of model files fills one beside the Status that it returns.
/// A plain value.

#include "base/finding.hpp"
#include "kvarena/base/status.hpp"

#include <cstdint>
#include <string>

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
Status status_of(const ReadFailure& failure) noexcept;

/// Sets `failure` to a parse_error of `file` and returns its Status. The subject of `what` is a
/// place: "byte 24", "line 3, column 9", "$.num_layers"; empty: the whole file.
Status refuse(ReadFailure& failure, const std::string& file, Finding what);

/// Makes the failure (not_found or io_error) for a `path` that the operating system refused with
/// `error` (an errno).
ReadFailure system_failure(const std::string& path, int error);

}  // namespace kvarena::capacity
