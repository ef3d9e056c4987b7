#pragma once

/// @file
/// `ReadFailure`: why a file about a model could not be read: a Status's code and errno, and what
/// is wrong for a person. Every reader of this room fills one beside the Status that it returns. A
/// plain value.

#include "base/finding.hpp"
#include "kvarena/base/status.hpp"

#include <cstdint>
#include <string>

namespace kvarena::capacity {

/// One reason; a reader stops at the first.
struct ReadFailure {
  StatusCode code = StatusCode::parse_error;  ///< io_error and not_found: `native` is the errno
  std::int32_t native = 0;                    ///< errno, or 0
  Finding what;                               ///< its subject: the file, and where in it
};

/// "FILE: PLACE: found ...; expected ...; ADVICE", in one line without control characters.
inline std::string to_string(const ReadFailure& failure) { return to_string(failure.what); }

/// The Status that goes with a failure: its code and errno, about a file.
Status status_of(const ReadFailure& failure) noexcept;

/// Sets `failure` to a parse_error of `file` and returns its Status. The subject of `what` is a
/// place: "byte 24", "line 3, column 9", "$.num_layers"; empty: the whole file.
Status refuse(ReadFailure& failure, const std::string& file, Finding what);

/// The operating system refused `path` with `error` (an errno): not_found or io_error.
ReadFailure system_failure(const std::string& path, int error);

}  // namespace kvarena::capacity
