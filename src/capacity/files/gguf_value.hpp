#pragma once

/// @file
/// `GgufValue`: a value of a GGUF file's metadata, and the reader of names and values. Only values
/// that planning uses are kept; a tokenizer's arrays are skipped. One thread at a time.

#include "capacity/files/byte_source.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvarena::capacity {

/// An array of the metadata.
struct GgufArray {
  std::int64_t length = 0;  ///< elements in the file
  /// The elements of an array of whole numbers or bools (0, 1) with at most as many elements as a
  /// model may have layers; empty for any other array.
  std::vector<std::int64_t> numbers;
};

/// A whole number (at most 2^63 - 1, larger ones become that), a number, a bool, a text (empty when
/// it is too long for planning), or an array.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, GgufArray>;

/// Values by key.
using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

/// Returns the description of a value for a message: "the number 12", "an array of 3", ...
std::string name_of(const GgufValue& value);

/// Reads at a cursor, which must outlive the reader. A function returns false on failure, and the
/// cursor's failure() then has the reason.
class GgufValueReader {
 public:
  explicit GgufValueReader(ByteCursor& in) : in_(in) {}

  /// Reads a key or a tensor's name of 1 .. `max_bytes` bytes, in UTF-8 without control characters.
  /// `what` says in errors which name it is.
  bool name(std::string& name, std::uint64_t max_bytes, std::string_view what);
  /// Reads a type and the value behind it.
  bool value(GgufValue& value);

 private:
  enum class Type : std::uint32_t;

  bool type(Type& type);
  bool whole(Type type, std::int64_t& value);
  template <class T>
  bool whole_as(std::int64_t& value);
  template <class T>
  bool floating(GgufValue& value);
  bool text(GgufValue& value);
  bool array(GgufArray& array, int depth);
  bool numbers(Type type, GgufArray& array);
  bool walk(Type kind, std::uint64_t length, int depth);
  bool encoded(std::string& text, std::uint64_t size, std::string_view what, bool is_name);

  ByteCursor& in_;
  std::int64_t kept_numbers_ = 0;
  std::uint64_t walked_ = 0;
};

}  // namespace kvarena::capacity
