#pragma once

/// @file
/// `GgufValue`: a value of a GGUF file's metadata, and the reader of names and values. Of the
/// values only what fits a planner is kept: a tokenizer's arrays are passed over. One thread.

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
  /// The elements of an array of whole numbers or bools (0, 1) that is not longer than any model
  /// has layers; else empty.
  std::vector<std::int64_t> numbers;
};

/// A whole number (past 2^63 - 1: that), a number, a bool, a text (empty where it is longer than a
/// planner wants), or an array.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, GgufArray>;

/// Values by key.
using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

/// "the number 12", "an array of 3", ...: for a message.
std::string name_of(const GgufValue& value);

/// Reads at a cursor, which must stay. Each function returns false after a failure, which the
/// cursor then tells.
class GgufValueReader {
 public:
  explicit GgufValueReader(ByteCursor& in) : in_(in) {}

  /// A key or a tensor's name of 1 .. `max_bytes` bytes: UTF-8 without control characters. `what`
  /// says in errors which.
  bool name(std::string& name, std::uint64_t max_bytes, std::string_view what);
  /// A value behind its type.
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
