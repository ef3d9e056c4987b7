#pragma once

/// @file
/// Reads untrusted JSON with limits on its size, its nesting and the number of its values. A
/// repeated key of an object, a NUL byte, text that is not UTF-8, and a number that no double holds
/// are refused. Memory is at most a small multiple of the bytes read, whatever the text contains.
/// Stateless; for any thread.

#include "capacity/files/byte_source.hpp"
#include "kvarena/base/status.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace kvarena::capacity {

/// The limits on a JSON text. The defaults fit any model's config.json.
struct JsonLimits {
  std::int64_t max_bytes = std::int64_t{4} << 20;     ///< of text
  std::int64_t max_depth = 32;                        ///< open arrays and objects at once
  std::int64_t max_values = std::int64_t{256} << 10;  ///< scalars, arrays and objects in all
};

/// A JSON text and its place for errors. Refers to the caller's memory.
struct JsonText {
  std::string_view text;         ///< the whole text
  std::string_view file;         ///< the file's name in errors
  std::int64_t first_byte = -1;  ///< the place of `text` in the file; errors then name bytes. -1:
                                 ///< the text is the whole file, and errors name line and column
};

/// A value without parts. The view is valid until the receiver returns.
using JsonScalar =
    std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string_view>;

/// Makes the Finding with which a receiver refuses the current value.
inline Finding defect(std::string found, std::string expected) {
  return {.found = std::move(found), .expected = std::move(expected)};
}

/// Receives a text's values one by one, in order. Each function may return a Finding, which ends
/// the reading.
class JsonReceiver {
 public:
  virtual ~JsonReceiver() = default;
  /// Receives a scalar: the whole text, the next element of an array, or the value of the last key.
  virtual std::optional<Finding> scalar(const JsonScalar& value) = 0;
  /// Receives the name of the open object's next value. The name is valid as long as the text or
  /// the reading. Repeated keys are refused at the end of the object, before close.
  virtual std::optional<Finding> key(std::string_view name) = 0;
  virtual std::optional<Finding> open_object() = 0;
  virtual std::optional<Finding> open_array() = 0;
  /// Says that the object or array opened last ends.
  virtual std::optional<Finding> close() = 0;
};

/// Returns the description of a scalar for a message: "the number 12", "the string \"x\"", "null".
std::string name_of(const JsonScalar& value);

/// Gives the values of `text` to `receiver`. On failure fills `failure` and returns parse_error.
Status stream_json(const JsonText& text, const JsonLimits& limits, JsonReceiver& receiver,
                   ReadFailure& failure);

/// Parses `text` into `value`. On failure fills `failure` and returns parse_error; `value` is then
/// unspecified.
Status parse_json(const JsonText& text, const JsonLimits& limits, nlohmann::json& value,
                  ReadFailure& failure);

/// Sets `text` to the content of the regular file `path`, which has at most limits.max_bytes bytes.
/// Returns not_found, io_error, or parse_error (too long, or not a regular file).
Status read_json_text(const std::string& path, const JsonLimits& limits, std::string& text,
                      ReadFailure& failure);

}  // namespace kvarena::capacity
