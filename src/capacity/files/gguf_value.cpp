#include "capacity/files/gguf.hpp"

#include "base/excerpt.hpp"
#include "base/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

namespace kvarena::capacity {

// As gguf.md numbers them.
enum class GgufValueReader::Type : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  text,
  array,
  u64,
  i64,
  f64
};

namespace {

constexpr std::uint32_t kNumTypes = 13;
constexpr std::uint64_t kMaxKeptTextBytes = 4096;  // names, not chat templates
constexpr std::uint64_t kMaxKeptNumbers = 4096;    // of an array: one a layer
constexpr std::int64_t kMaxKeptNumbersInAll = std::int64_t{1} << 20;
constexpr std::uint64_t kMaxArrayLength = std::uint64_t{1} << 32;
constexpr std::uint64_t kMaxWalked = std::uint64_t{4} << 20;  // texts and arrays within arrays
constexpr int kMaxArrayDepth = 8;

}  // namespace

bool GgufValueReader::name(std::string& name, std::uint64_t max_bytes, std::string_view what) {
  std::uint64_t size = 0;
  if (!in_.number(size, "a length")) return false;
  if (size > 0 && size <= max_bytes) return encoded(name, size, what, true);
  return in_.refuse(in_.offset() - 8, fmt::format("{} of {} bytes", what, size),
                    fmt::format("1 .. {}", max_bytes));
}

bool GgufValueReader::encoded(std::string& text, std::uint64_t size, std::string_view what,
                              bool is_name) {
  const std::int64_t begin = in_.offset();
  if (!in_.text(text, size, what)) return false;
  std::size_t bad = utf8_end(text);
  if (is_name) {
    const auto at = std::find_if(text.begin(), text.end(),
                                 [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; });
    bad = std::min(bad, static_cast<std::size_t>(at - text.begin()));
  }
  if (bad == text.size()) return true;
  return in_.refuse(
      begin + static_cast<std::int64_t>(bad),
      fmt::format("{} in {}", excerpt_of(std::string_view(text).substr(bad, 1)), what),
      is_name ? "UTF-8 without control characters" : "UTF-8");
}

bool GgufValueReader::type(Type& type) {
  std::uint32_t number = 0;
  if (!in_.number(number, "the type of a value")) return false;
  type = static_cast<Type>(number);
  if (number < kNumTypes) return true;
  return in_.refuse(in_.offset() - 4, fmt::format("value type {}", number),
                    fmt::format("0 .. {}", kNumTypes - 1));
}

template <class T>
bool GgufValueReader::whole_as(std::int64_t& value) {
  T stored{};
  if (!in_.number(stored, "a number")) return false;
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    constexpr auto kLargest = std::numeric_limits<std::int64_t>::max();
    stored = std::min(stored, static_cast<std::uint64_t>(kLargest));
  }
  value = static_cast<std::int64_t>(stored);
  return true;
}

// Of any type but text, array and the floating ones.
bool GgufValueReader::whole(Type type, std::int64_t& value) {
  switch (type) {
    case Type::u8: return whole_as<std::uint8_t>(value);
    case Type::i8: return whole_as<std::int8_t>(value);
    case Type::u16: return whole_as<std::uint16_t>(value);
    case Type::i16: return whole_as<std::int16_t>(value);
    case Type::u32: return whole_as<std::uint32_t>(value);
    case Type::i32: return whole_as<std::int32_t>(value);
    case Type::u64: return whole_as<std::uint64_t>(value);
    case Type::i64: return whole_as<std::int64_t>(value);
    default: break;
  }
  if (!whole_as<std::uint8_t>(value)) return false;
  if (value <= 1) return true;
  return in_.refuse(in_.offset() - 1, fmt::format("the bool {}", value), "0 or 1");
}

template <class T>
bool GgufValueReader::floating(GgufValue& value) {
  T number = 0;
  if (!in_.number(number, "a number")) return false;
  value = static_cast<double>(number);
  return true;
}

bool GgufValueReader::value(GgufValue& value) {
  Type kind{};
  if (!type(kind)) return false;
  switch (kind) {
    case Type::array: value = GgufArray{}; return array(std::get<GgufArray>(value), 1);
    case Type::text: return text(value);
    case Type::f32: return floating<float>(value);
    case Type::f64: return floating<double>(value);
    default: break;
  }
  std::int64_t number = 0;
  if (!whole(kind, number)) return false;
  if (kind == Type::boolean) {
    value = number != 0;
  } else {
    value = number;
  }
  return true;
}

bool GgufValueReader::text(GgufValue& value) {
  std::uint64_t size = 0;
  if (!in_.number(size, "the length of a text")) return false;
  value = std::string();
  if (size > kMaxKeptTextBytes) return in_.skip(size, "a text");
  return encoded(std::get<std::string>(value), size, "a text", false);
}

bool GgufValueReader::numbers(Type type, GgufArray& array) {
  kept_numbers_ += array.length;
  for (std::int64_t i = 0; i < array.length; ++i) {
    std::int64_t number = 0;
    if (!whole(type, number)) return false;
    array.numbers.push_back(number);
  }
  return true;
}

bool GgufValueReader::array(GgufArray& array, int depth) {
  if (depth > kMaxArrayDepth) {
    return in_.refuse(in_.offset(), "one array more inside",
                      fmt::format("at most {} levels of arrays", kMaxArrayDepth));
  }
  Type kind{};
  std::uint64_t length = 0;
  if (!type(kind) || !in_.number(length, "the length of an array")) return false;
  if (length > kMaxArrayLength) {
    return in_.refuse(in_.offset() - 8, fmt::format("an array of {}", length),
                      fmt::format("at most {}", kMaxArrayLength));
  }
  array.length = static_cast<std::int64_t>(length);
  const auto fixed_bytes = [&]() -> std::uint64_t {
    switch (kind) {
      case Type::u8:
      case Type::i8:
      case Type::boolean: return 1;
      case Type::u16:
      case Type::i16: return 2;
      case Type::u32:
      case Type::i32:
      case Type::f32: return 4;
      case Type::text:
      case Type::array: return 0;
      default: return 8;
    }
  }();
  if (fixed_bytes != 0) {
    const bool is_floating = kind == Type::f32 || kind == Type::f64;
    const bool keep = depth == 1 && !is_floating && length <= kMaxKeptNumbers &&
                      kept_numbers_ < kMaxKeptNumbersInAll;
    return keep ? numbers(kind, array) : in_.skip(length * fixed_bytes, "an array");
  }
  return walk(kind, length, depth);
}

bool GgufValueReader::walk(Type kind, std::uint64_t length, int depth) {
  // A text is its length at least, an array its type and length.
  if (!in_.has(length * (kind == Type::array ? 12 : 8), "an array")) return false;
  walked_ += length;
  if (walked_ > kMaxWalked) {
    return in_.refuse(in_.offset() - 8, fmt::format("{} texts and arrays within arrays", walked_),
                      fmt::format("at most {} in all", kMaxWalked));
  }
  for (std::uint64_t i = 0; i < length; ++i) {
    std::uint64_t size = 0;
    GgufArray inner;
    const bool passed = kind == Type::array
                            ? array(inner, depth + 1)
                            : in_.number(size, "the length of a text") && in_.skip(size, "a text");
    if (!passed) return false;
  }
  return true;
}

std::string name_of(const GgufValue& value) {
  struct Name {
    std::string operator()(std::int64_t number) const {
      return fmt::format("the number {}", number);
    }
    std::string operator()(double number) const { return fmt::format("the number {}", number); }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(const std::string& text) const { return "the text " + excerpt_of(text); }
    std::string operator()(const GgufArray& array) const {
      return fmt::format("an array of {}", array.length);
    }
  };
  return std::visit(Name{}, value);
}

}  // namespace kvarena::capacity
