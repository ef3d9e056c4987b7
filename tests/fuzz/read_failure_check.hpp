#pragma once

/// @file
/// What every reader of a model's files promises of a refusal.

#include "base/excerpt.hpp"
#include "capacity/files/byte_source.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace kvarena::test {

/// Aborts unless `status` is that of `failure`, and `failure` one line that says where, what and
/// what instead, of bounded length and in ASCII.
inline void check_refusal(const Status& status, const capacity::ReadFailure& failure) {
  const std::string text = capacity::to_string(failure);
  bool is_plain = text.size() < 1000;
  for (const char c : text) is_plain = is_plain && c >= 0x20 && c <= 0x7e;
  for (const std::string* part :
       {&failure.what.subject, &failure.what.found, &failure.what.expected, &failure.what.advice}) {
    is_plain = is_plain && printable(*part) == *part;
  }
  if (status != capacity::status_of(failure) || status.code != StatusCode::parse_error ||
      failure.what.subject.empty() || failure.what.found.empty() || failure.what.expected.empty() ||
      !is_plain) {
    std::fprintf(stderr, "refused with %d: %s\n", static_cast<int>(status.code), text.c_str());
    std::abort();
  }
}

}  // namespace kvarena::test
