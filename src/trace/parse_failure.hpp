#pragma once

/// @file
/// `ParseFailure`: where an input file is wrong, what stands there and what was expected, for a
/// person. Status has no text, so readers of text keep one of these beside the Status they return.
/// A plain value.

#include "base/excerpt.hpp"
#include "kvarena/base/status.hpp"

#include <cstdint>
#include <string>

namespace kvarena::trace {

/// One defect of an input file. Line and column count from 1; 0 means the file as a whole.
struct ParseFailure {
  std::string file;         ///< as the caller named it
  std::int64_t line = 0;    ///< counts LF-terminated lines
  std::int64_t column = 0;  ///< counts bytes
  std::string found;        ///< what is there, quoted and shortened
  std::string expected;     ///< what should have been there
  std::string advice;       ///< what to do; may be empty
};

/// "FILE:LINE:COLUMN", as far as they are known.
std::string place_of(const ParseFailure& failure);

/// "FILE:LINE:COLUMN: found ...; expected ...; ADVICE", in one line without control characters.
std::string to_string(const ParseFailure& failure);

/// The Status that goes with a failure: parse_error (file) with subject = line and required =
/// column.
Status status_of(const ParseFailure& failure) noexcept;

}  // namespace kvarena::trace
