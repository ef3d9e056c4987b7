#pragma once

/// @file
/// `ReadFailure`: why a file about a model could not be read, for a person: where it is wrong, what
/// stands there, what was expected. Status has no text, so every reader of this room fills one of
/// these beside the Status that it returns. A plain value.

#include "kvarena/base/status.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace kvarena::capacity {

/// One reason; a reader stops at the first.
struct ReadFailure {
  StatusCode code = StatusCode::parse_error;  ///< io_error and not_found: `native` is the errno
  std::int32_t native = 0;                    ///< errno, or 0
  std::string file;                           ///< as the caller named it
  std::string place;     ///< "byte 24", "line 3, column 9", "$.num_layers"; empty: the whole file
  std::string found;     ///< what is there, quoted and shortened
  std::string expected;  ///< what should have been there
  std::string advice;    ///< what to do; may be empty
};

/// "FILE: PLACE: found ...; expected ...; ADVICE", in one line without control characters.
std::string to_string(const ReadFailure& failure);

/// The Status that goes with a failure: its code and errno, about a file.
Status status_of(const ReadFailure& failure) noexcept;

/// Sets `failure` to a parse_error about all of `file` and returns its Status.
Status refuse(ReadFailure& failure, const std::string& file, std::string found,
              std::string expected, std::string advice = "");

/// The operating system refused `path` with `error` (an errno): not_found or io_error.
ReadFailure system_failure(std::string_view path, int error);

}  // namespace kvarena::capacity
