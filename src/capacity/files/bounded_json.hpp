#pragma once

/// @file
/// JSON from outside, read within limits: its size, its nesting, how many values it has. A key that
/// an object has twice, a NUL byte, text that is not UTF-8, and a number that no double holds are
/// refused. Memory is at most a small multiple of what is read, whatever the text claims.
/// Stateless; for any thread.

#include "capacity/files/read_failure.hpp"
#include "kvarena/base/status.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace kvarena::capacity {

/// What a JSON text may cost. The defaults fit any model's config.json.
struct JsonLimits {
  std::int64_t max_bytes = std::int64_t{4} << 20;     ///< of text
  std::int64_t max_depth = 32;                        ///< open arrays and objects at once
  std::int64_t max_values = std::int64_t{256} << 10;  ///< scalars, arrays and objects in all
};

/// A JSON text and what errors say of it. Refers to the caller's memory.
struct JsonText {
  std::string_view text;         ///< the whole of it
  std::string_view file;         ///< named in errors
  std::int64_t first_byte = -1;  ///< where `text` begins in the file: errors then name bytes;
                                 ///< -1: the text is the file, errors name line and column
};

/// A value without parts. The view lives until the receiver returns.
using JsonScalar =
    std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string_view>;

/// What a receiver does not want, at the value just given.
inline Finding defect(std::string found, std::string expected) {
  return {.found = std::move(found), .expected = std::move(expected)};
}

/// Takes a text's values one by one, in order. Each function may refuse, which ends the reading.
class JsonReceiver {
 public:
  virtual ~JsonReceiver() = default;
  /// A scalar: the text itself, an array's next, or the value of the last key.
  virtual std::optional<Finding> scalar(const JsonScalar& value) = 0;
  /// The name of the open object's next value, which lives as long as the text or the reading.
  /// Whether it was there before is looked at when the object ends, before close.
  virtual std::optional<Finding> key(std::string_view name) = 0;
  /// An object begins.
  virtual std::optional<Finding> open_object() = 0;
  /// An array begins.
  virtual std::optional<Finding> open_array() = 0;
  /// The object or array opened last ends.
  virtual std::optional<Finding> close() = 0;
};

/// What a scalar is, for a message: "the number 12", "the string \"x\"", "null".
std::string name_of(const JsonScalar& value);

/// Hands the values of `text` to `receiver`. On failure fills `failure` and returns parse_error.
Status stream_json(const JsonText& text, const JsonLimits& limits, JsonReceiver& receiver,
                   ReadFailure& failure);

/// Sets `value` to what `text` says. On failure fills `failure` and returns parse_error; `value` is
/// then unspecified.
Status parse_json(const JsonText& text, const JsonLimits& limits, nlohmann::json& value,
                  ReadFailure& failure);

/// Sets `text` to the content of the regular file `path`, which may have limits.max_bytes. Returns
/// not_found, io_error, parse_error (too long, no regular file).
Status read_json_text(const std::string& path, const JsonLimits& limits, std::string& text,
                      ReadFailure& failure);

}  // namespace kvarena::capacity
