#pragma once

/// @file
/// `Finding`: what is wrong, for a person: what it is about, what was found, what was expected,
/// what to do. Status has no text, so functions that read files or check options fill one of these
/// beside the Status that they return. Options are named as the fields of their struct; the command
/// adds how it spells them. A plain value.

#include "base/excerpt.hpp"

#include <string>

namespace kvarena {

/// One thing that is wrong. Parts that have nothing to say are empty.
struct Finding {
  std::string subject{};   ///< "trace.jsonl:3:5", "model.gguf: byte 24", "--http"
  std::string found{};     ///< what the subject has there ("7 bytes"); without a subject a sentence
  std::string expected{};  ///< what should have been there
  std::string advice{};    ///< what to do

  /// Nothing is wrong.
  bool is_empty() const noexcept { return found.empty(); }

  friend bool operator==(const Finding&, const Finding&) = default;
};

/// "SUBJECT: found FOUND", or FOUND where there is no subject.
inline std::string headline(const Finding& finding) {
  return finding.subject.empty() ? finding.found : finding.subject + ": found " + finding.found;
}

/// "SUBJECT: found FOUND; expected EXPECTED; ADVICE", in one line without control characters.
inline std::string to_string(const Finding& finding) {
  std::string text = headline(finding);
  if (!finding.expected.empty()) text += "; expected " + finding.expected;
  if (!finding.advice.empty()) text += "; " + finding.advice;
  return printable(text);
}

}  // namespace kvarena
